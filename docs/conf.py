"""These pages as a site: `sphinx-build -W -c docs . build/site` in the repository's root."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import mermaidx
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

project = html_title = "mapf-frozenlake-rl"
extensions = ["myst_parser"]
html_theme = "furo"
root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/**", "experiments/models/**"]
myst_enable_extensions = ["html_image"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
suppress_warnings = ["toc.not_included"]  # docs/contexts holds texts for models, without titles.

_NAVIGATION = {
    "Pages": ("docs/index", "docs/*"),
    "Measured": ("docs/benchmarks/*", "docs/studies/README", "docs/studies/*/README"),
    "Models": ("experiments/models/*/README", "docs/studies/*/model/README"),
    "More": ("docs/launch/README", "CONTRIBUTING", "CHANGELOG"),
}


class Diagram(SphinxDirective):
    """A fence of mermaid, drawn here; a click shows it in its full size."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        source = "\n".join(self.content)
        config = {"flowchart": {"useMaxWidth": False, "wrappingWidth": 600}}
        name = hashlib.sha256(source.encode()).hexdigest()[:16]
        path = Path(self.env.doctreedir, f"{name}.svg")
        svg = mermaidx.render(source, config=config).svg()
        path.write_text(svg.replace("background-color: transparent", "background-color: white"))
        uri = "/" + os.path.relpath(path, self.env.srcdir)
        return [nodes.image(uri=uri, alt=source, width="100%")]


def setup(app: Any) -> None:
    """Gives the first page the navigation, which only the site shows, and its name on a host."""

    def add(app: Any, name: str, source: list[str]) -> None:
        for caption, pages in _NAVIGATION.items() if name == root_doc else ():
            lines = ["", "```{toctree}", f":caption: {caption}", ":hidden:", ":glob:", "", *pages]
            source[0] += "\n".join([*lines, "```", ""])

    def name_first_page(app: Any, error: Exception | None) -> None:
        if error is None:
            shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))

    app.add_directive("mermaid", Diagram)
    app.connect("source-read", add)
    app.connect("build-finished", name_first_page)
