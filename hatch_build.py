"""For the build: README as PyPI shows it, where links to files of the project need a whole address."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(\]\()(?![a-z]+:|#|/)([^)\s]+\))")
PICTURE = re.compile(r"(!\[[^\]]*\]\()(?![a-z]+:|#|/)([^)\s]+\))")


class ReadmeForPyPI(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text()
        source = metadata["urls"]["Source"]
        metadata["readme"] = {"content-type": "text/markdown", "text": linked(text, source)}


def linked(text: str, source: str) -> str:
    """Relative links and pictures lead to the sources."""
    text = PICTURE.sub(rf"\1{source}/raw/main/\2", text)
    return LINK.sub(rf"\1{source}/blob/main/\2", text)
