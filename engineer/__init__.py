"""The environment engineer: evidence -> context -> proposal -> projected configuration."""

try:
    import jinja2 as jinja2
    import yaml as yaml
except ModuleNotFoundError as error:
    text = "designing needs Jinja2 and PyYAML; in a clone of the project: pip install -e '.[train]'"
    raise ImportError(text) from error
