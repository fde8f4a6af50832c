"""The options that the sources of programs declare, which their --help lists."""
import pathlib
import re


def declared_options(source: pathlib.Path) -> list[str]:
    text = source.read_text()
    for call, option in {"line.share(": "--chunks", "line.device(": "--device"}.items():
        text = text.replace(call, f'line.add("{option}"')
    return re.findall(r'line\.(?:add|flag)\("(--[\w-]+)"', text)
