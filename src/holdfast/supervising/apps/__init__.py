"""Programs that cannot be changed: those that holdfast knows by name, and those that a recipe describes."""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files

from holdfast.core.errors import UsageError
from holdfast.engine.jobs import RESTART_STATUS, fill_in_job
from holdfast.supervising.app import App
from holdfast.supervising.apps.recipe import Recipe, parse_recipe, read_recipe

__all__ = ["APP_NAMES", "find_app"]

_RECIPES = ("gromacs", "lammps", "dmtcp")
APP_NAMES = (*_RECIPES, "criu")
"""Those known by name."""
_DEFAULT_RUN = "holdfast-run"


def find_app(
    name: str, command: Sequence[str], *, run: str | None, folder: str = ".", restart_status: int = RESTART_STATUS
) -> App:
    """The app of that name, or of that TOML file, for the command, which will be started in the folder.

    Without a run, its checkpoints go to `holdfast-run` in the folder; `{job}` in the run's path is the job's name.
    UsageError where it does not fit.
    """
    if not command:
        raise UsageError("there is no command to run", hint=f"holdfast run --app {name} -- gmx mdrun …")
    where = os.path.join(folder, _DEFAULT_RUN) if run is None else fill_in_job(run, os.environ)
    if name == "criu":
        from holdfast.supervising.apps.criu_app import CriuApp

        return CriuApp(command, run=where, folder=folder, restart_status=restart_status)
    from holdfast.supervising.apps.files_app import FilesApp

    label = os.path.basename(name).removesuffix(".toml")
    return FilesApp(_recipe(name), command, name=label, run=where, folder=folder, restart_status=restart_status)


def _recipe(name: str) -> Recipe:
    if name in _RECIPES:
        text = (files(__name__) / "recipes" / f"{name}.toml").read_text("utf-8")
        return parse_recipe(text, f"{name}.toml")
    if name.endswith(".toml"):
        return read_recipe(name)
    close = get_close_matches(name, APP_NAMES, n=1)
    raise UsageError(
        f"--app {name}: there is no such app; expected {', '.join(APP_NAMES)}, or a file that ends in .toml",
        hint=f"did you mean {close[0]}?" if close else "docs/reference/app-recipes.md says how to describe a program",
    )
