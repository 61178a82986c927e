"""A transfer plugin of HTCondor, such as a site has for its storage: place:///some/path is a file of this machine."""

import json
import os
import re
import shutil
import sys
from urllib.parse import unquote, urlparse

ABILITIES = """\
PluginVersion = "1"
PluginType = "FileTransfer"
MultipleFileSupport = true
SupportedMethods = "place"
"""


def main(words: list[str]) -> int:
    if "-classad" in words:
        print(ABILITIES, end="")
        return 0
    with open(words[words.index("-infile") + 1], encoding="utf-8") as file:
        wanted = file.read()
    results = []
    pairs = zip(_texts(wanted, "LocalFileName"), _texts(wanted, "Url"), strict=True)
    for local, url in pairs:
        there = unquote(urlparse(url).path)
        source, target = (local, there) if "-upload" in words else (there, local)
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        shutil.copyfile(source, target)
        results.append(
            f'[ TransferSuccess = true; TransferProtocol = "place"; TransferUrl = {json.dumps(url)}; '
            f"TransferFileName = {json.dumps(local)}; TransferTotalBytes = {os.path.getsize(source)} ]\n"
        )
    with open(words[words.index("-outfile") + 1], "w", encoding="utf-8") as file:
        file.writelines(results)
    return 0


def _texts(ads: str, name: str) -> list[str]:
    return re.findall(rf'\b{name}\s*=\s*"([^"]*)"', ads)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
