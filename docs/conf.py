"""These pages as a site: `sphinx-build -W -c docs . build/site` in the repository's root."""

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mermaidx
from absl import flags
from docutils import nodes
from sphinx import addnodes
from sphinx.domains.python import PyObject
from sphinx.util.docutils import SphinxDirective

from experiments.settings.page import options_page

project = html_title = "mapf-frozenlake-rl"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
root_doc = "README"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
include_patterns = ["*.md", "docs/**", "experiments/models/**"]
myst_enable_extensions = ["html_image"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
suppress_warnings = ["toc.not_included"]  # docs/contexts holds texts for models, without titles.

autodoc_default_options = {"members": True, "special-members": "__call__"}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
# Of other extras than `train`.
autodoc_mock_imports = ["datasets", "gymnasium", "pettingzoo", "reasoning_gym", "torch"]
autodoc_mock_imports += ["transformers", "verifiers"]
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
default_role = "py:obj"
napoleon_attr_annotations = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# Of the first page, and of that of the reference.
_PACKAGES = ("mapf_jax", "learner", "engineer", "experiments")
_NAVIGATION = {
    root_doc: {
        "Pages": ("docs/index", "docs/api/options", "docs/*"),
        "Measured": ("docs/benchmarks/*", "docs/studies/README", "docs/studies/*/README"),
        "Models": ("experiments/models/*/README", "docs/studies/*/model/README"),
        "More": ("docs/launch/README", "CONTRIBUTING", "CHANGELOG"),
    },
    "docs/api": {"Packages": [f"api/{package}" for package in _PACKAGES]},
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


def write_reference(app: Any) -> None:
    """Writes the page of options, and a page of public names for each folder of the packages."""
    pages = Path(app.srcdir, "docs", "api")
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir()
    (pages / "options.md").write_text(options_page())
    for init in (init for name in _PACKAGES for init in Path(name).rglob("__init__.py")):
        if not (text := init.read_text()):  # It only holds data.
            continue
        name = ".".join(init.parent.parts)
        exported = re.findall(r"^from (\S+) import (\w+) as \2$", text, re.MULTILINE)
        lines = [name, "=" * len(name), "", f".. automodule:: {name}", ""]
        lines += [", ".join(f":py:obj:`~{module}.{thing}`" for module, thing in exported)]
        if name in _PACKAGES and any(init.parent.glob("*/__init__.py")):
            lines += ["", ".. toctree::", "   :glob:", "   :maxdepth: 1", "", f"   {name}.*"]
        for path in sorted(init.parent.glob("[!_]*.py")):
            module = f"{name}.{path.stem}"
            lines += ["", module, "-" * len(module), "", f".. automodule:: {module}"]
        (pages / f"{name}.rst").write_text("\n".join([*lines, ""]))


def leave_out(app: Any, kind: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out the fields of named tuples, which say nothing here; the signature has them."""
    return True if str(thing.__doc__).startswith("Alias for field number") else None


def from_markdown(
    app: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Makes a docstring's Markdown what napoleon and docutils read."""

    def mark(found: re.Match[str]) -> str:
        code, letter = found.groups()
        if code is None:
            return "\\|"
        is_name = re.fullmatch(r"[a-zA-Z][\w.]*\w", code)
        return (f"`{code}`" if is_name else f"``{code}``") + (f"\\ {letter}" if letter else "")

    text = re.sub(r"`([^`]+)`(\w?)|\|", mark, "\n".join(lines))
    # What stands before a colon would be taken as a type.
    text = re.sub(r"^(Returns|Yields):\n( +)", r"\g<0>..\n\n\2", text, flags=re.MULTILINE)
    if kind == "module":
        text = re.sub(r"(?<=\n\n)(?= {4}\S)", "::\n\n", text)
    elif kind in ("attribute", "data", "property"):  # Likewise before a colon.
        text = f"..\n\n{text}"
    lines[:] = text.split("\n")


def without_long_values(app: Any, page: nodes.document) -> None:
    """Leaves out the long values of constants, which also hold paths on this machine."""
    for part in list(page.findall(addnodes.desc_annotation)):
        if part.astext().startswith(" = ") and len(part.astext()) > 60:
            part.parent.remove(part)


def setup(app: Any) -> None:
    """Gives pages the navigation, which only the site shows, and the first its name on a host."""

    def add(app: Any, name: str, source: list[str]) -> None:
        for caption, pages in _NAVIGATION.get(name, {}).items():
            depth = ":hidden:" if name == root_doc else ":maxdepth: 2"
            lines = ["", "```{toctree}", f":caption: {caption}", depth, ":glob:", "", *pages]
            source[0] += "\n".join([*lines, "```", ""])

    def name_first_page(app: Any, error: Exception | None) -> None:
        if error is None:
            shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))

    # Commands have flags of the same names.
    for define in [name for name in vars(flags) if name.startswith(("DEFINE_", "register_"))]:
        setattr(flags, define, Mock())
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.add_directive("mermaid", Diagram)
    app.connect("builder-inited", write_reference)
    app.connect("source-read", add)
    app.connect("autodoc-skip-member", leave_out)
    app.connect("autodoc-process-docstring", from_markdown, priority=400)  # Before napoleon.
    app.connect("doctree-read", without_long_values)
    app.connect("build-finished", name_first_page)
