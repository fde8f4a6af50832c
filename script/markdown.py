"""Cells, code and tables of Markdown, for the documents that script/docs writes."""
import re


def cell(text: str) -> str:
    """Text of a table, in which only `code` is markup."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"(?<=\S)\*|\*(?=\S)|<(?=\w)|(?<=\])\(", r"\\\g<0>", part) for part in parts[::2]]
    return "`".join(parts).replace("|", r"\|")


def code(text: str) -> str:
    return f"`{text}`".replace("|", r"\|")


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [header, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]]) + "\n"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
