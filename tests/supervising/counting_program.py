"""Counts steps, tells them as a Checkpointer does, and keeps the count in a file: a training without the training.

What it is to do comes as JSON: `steps` in all, `crash_at` a step (with `status`), `hang_at` a step, `pause_s` between
steps, `deaf` to these signals, `careless` of these, `silent` without beats, `slow_end_s` between its last words and its
end, `quits` with status 0 and without a word when it is to stop, `starts` on which `crash_at` and `hang_at` hold.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from holdfast.engine.beats import Beat, Beats

WISHES = json.loads(sys.argv[1])
COUNT, STARTS = Path("count"), Path("starts")


def main() -> None:
    step = int(COUNT.read_text()) if COUNT.exists() else 0
    starts = int(STARTS.read_text()) + 1 if STARTS.exists() else 1
    STARTS.write_text(str(starts))
    Path("pid").write_text(str(os.getpid()))
    first, stopping = step, ""

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = signal.Signals(number).name
        print(f"got {stopping}", flush=True)  # at once: what others say is not to come between

    for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP"):
        if name not in WISHES.get("careless", []):
            is_deaf = name in WISHES.get("deaf", [])
            signal.signal(signal.Signals[name], signal.SIG_IGN if is_deaf else stop)
    total = WISHES.get("steps", 1_000_000)
    folder = None if WISHES.get("silent") else os.environ.get("HOLDFAST_BEATS")
    run, quits = os.path.abspath("run"), WISHES.get("quits", False)
    beats = Beats(folder, lambda: Beat(os.getpid(), run, starts, step, step, total, "" if quits else stopping, first))
    beats.start()
    print("start", starts, "from", step, "restarts", os.environ.get("HOLDFAST_RESTARTS"), flush=True)
    is_bad = starts in WISHES.get("starts", range(1000))
    while step < total:
        if stopping:
            COUNT.write_text(str(step))
            beats.close()
            for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP") if "slow_end_s" in WISHES else ():
                signal.signal(signal.Signals[name], signal.SIG_DFL)  # as Python does when it ends
            print("saved after", stopping, flush=True)
            time.sleep(WISHES.get("slow_end_s", 0.0))
            raise SystemExit(0 if quits else 85)
        if is_bad and step == WISHES.get("crash_at"):
            COUNT.write_text(str(WISHES.get("save_at_crash", step)))
            beats.close()
            os._exit(WISHES.get("status", 1))
        if is_bad and step == WISHES.get("hang_at"):
            print("hangs", flush=True)
            while not stopping:
                time.sleep(0.01)
            continue
        time.sleep(WISHES.get("pause_s", 0.005))
        step += 1
    beats.close()
    print("done", flush=True)


main()
