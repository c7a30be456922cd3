"""Hooks of mkdocs: the pages of the site that are not files in docs/.

- The front page is the README.
- Files outside docs/ that a page links to (benchmarks, the changelog, what lies in deploy/) become pages of
  `repository/`; links to them lead there. So the site needs nothing but itself.
- The OpenAPI document becomes a page of its own.
- `llms.txt` lists all pages for programs that read.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

from topics.server.openapi.document import document
from topics.settings import Settings
from topics.testing.server import ServerThread

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")
LISTED = ("bench/RESULTS.md", "CHANGELOG.md", "CONTRIBUTING.md")  # in the navigation
KINDS = {
    ".md": "",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".py": "python",
    ".service": "ini",
    ".conf": "nginx",
}


def on_config(config: Any) -> Any:
    """Name every decision in the navigation."""
    decisions = [f"decisions/{path.name}" for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]

    def filled(item: Any) -> Any:
        if isinstance(item, dict):
            return {name: decisions if value == "decisions" else filled(value) for name, value in item.items()}
        return [filled(one) for one in item] if isinstance(item, list) else item

    config.nav = filled(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "index.md", content=moved((ROOT / "README.md").read_text(), "", "index.md")))
    files.append(File.generated(config, "reference/openapi.md", content=openapi_page()))
    for path in sorted(outside()):
        source = ROOT / path
        if source.suffix == ".md":
            text = moved(source.read_text(), posixpath.dirname(path), f"repository/{path}")
            level = InclusionLevel.UNDEFINED if path in LISTED else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, f"repository/{path}", content=text, inclusion=level))
        else:
            kind = KINDS.get(source.suffix, "text")
            text = f"# {path}\n\n````{kind}\n{source.read_text()}\n````\n"
            files.append(
                File.generated(config, f"repository/{path}.md", content=text, inclusion=InclusionLevel.NOT_IN_NAV)
            )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.generated_by:
        return markdown
    return moved(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)), page.file.src_uri)


def on_post_build(config: Any) -> None:
    lines = ["# topics", "", f"> {config.site_description}", ""]
    for path in sorted((ROOT / "docs").rglob("*.md")):
        title = path.read_text().partition("\n")[0].lstrip("# ")
        name = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        lines.append(f"- [{title}]({name})")
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n")


def targets(text: str, directory: str) -> list[str]:
    """The files that a text links to, from the root of the project."""
    prose = FENCE.sub("", text)
    links = [match[2] for match in LINK.finditer(prose) if not re.match(r"[a-z]+:", match[2])]
    return [posixpath.normpath(posixpath.join(directory, link)) for link in links]


def outside() -> set[str]:
    """Files outside docs/ that pages link to, and those that these link to."""
    found = set(LISTED)
    todo = [(path.read_text(), posixpath.dirname(path.relative_to(ROOT).as_posix())) for path in docs()]
    todo += [((ROOT / "README.md").read_text(), "")]
    todo += [((ROOT / path).read_text(), posixpath.dirname(path)) for path in found]
    while todo:
        text, directory = todo.pop()
        for target in targets(text, directory):
            is_page = target.startswith("docs/") or target in (".", "README.md", *found)
            if is_page or not (ROOT / target).is_file() or (ROOT / target).suffix in (".png", ".svg"):
                continue
            found.add(target)
            if target.endswith(".md"):
                todo.append(((ROOT / target).read_text(), posixpath.dirname(target)))
    return found


def docs() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def moved(text: str, directory: str, page: str) -> str:
    """A page whose links are those of the project, with links as the site needs them."""

    def lead(match: re.Match[str]) -> str:
        label, link, anchor = match[1], match[2], match[3] or ""
        if re.match(r"[a-z]+:", link):
            return match[0]
        target = posixpath.normpath(posixpath.join(directory, link))
        if target == "README.md":
            place = "index.md"
        elif target.startswith("docs/") and (ROOT / target).is_file():
            place = target.removeprefix("docs/")
        elif (ROOT / target).is_file():
            place = f"repository/{target}" + ("" if target.endswith(".md") else ".md")
        else:  # a directory, which the site does not have
            return label[1:-1]
        return f"{label}({posixpath.relpath(place, posixpath.dirname(page) or '.')}{anchor})"

    parts = FENCE.split(text)
    return "".join(plain(part) if part.startswith("```") else LINK.sub(lead, part) for part in parts)


def plain(block: str) -> str:
    """A block with nothing but its language behind the fence: the rest is for the tests."""
    return re.sub(r"\A(```\w*)[^\n]*", r"\1", block)


def openapi_page() -> str:
    """The OpenAPI document as a page: every operation, its parameters, bodies and answers."""
    with ServerThread(Settings(api_keys="any")) as server:
        described = document(server.server.app)
    lines = ["# The HTTP API, operation by operation", "", "From the OpenAPI document that a server has at", ""]
    lines[2] += " `/v0/openapi.json` and shows at `/docs`. [The HTTP API](../api.md) is the guide."
    operations: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if method in ("get", "put", "post", "delete", "patch", "head", "options"):
                tag = operation.get("tags", ["other"])[0]
                operations.setdefault(tag, []).extend(operation_of(method, path, operation))
    for tag, section in operations.items():
        lines += [f"## {tag}", "", *section]
    return "\n".join(lines)


def operation_of(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    lines = [f"### {operation.get('operationId', path)}", "", f"`{method.upper()} {path}`", ""]
    for text in (operation.get("summary"), operation.get("description")):
        if text:
            lines += [text, ""]
    parameters = [one for one in operation.get("parameters", []) if "name" in one]
    if parameters:
        lines += ["| parameter | in | meaning |", "|---|---|---|"]
        lines += [f"| `{one['name']}` | {one['in']} | {cell(one.get('description', ''))} |" for one in parameters]
        lines.append("")
    bodies = operation.get("requestBody", {}).get("content", {})
    if bodies:
        lines += ["Body: " + ", ".join(f"`{media}`" for media in bodies), ""]
    lines += ["| status | answer |", "|---|---|"]
    for status, answer in operation.get("responses", {}).items():
        lines.append(
            f"| {status} | {cell(answer.get('description', '') or answer.get('$ref', '').rpartition('/')[2])} |"
        )
    return [*lines, ""]


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
