"""Query parameters of a request. Every parameter is validated, and unknown ones are refused."""

from __future__ import annotations

import re

from starlette.requests import Request

_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)


class BadRequestError(Exception):
    """A request with an invalid parameter. The text does not repeat the parameter's value."""


class Parameters:
    """The parameters of one request. Each is read once; `end` refuses the rest."""

    def __init__(self, request: Request) -> None:
        self.name: str = request.path_params.get("name", "")
        pairs = request.query_params.multi_items()
        self._given = dict(pairs)
        if len(self._given) != len(pairs):
            raise BadRequestError("A parameter is given twice. Give each parameter once.")

    def text(self, name: str, longest: int) -> str | None:
        """A text of bounded length, or None if it is not given."""
        value = self._given.pop(name, None)
        if value is not None and len(value) > longest:
            raise BadRequestError(f"`{name}` must have at most {longest} characters.")
        return value

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """An integer between two limits."""
        value = self._given.pop(name, None)
        if value is None:
            return default
        if not _INTEGER.fullmatch(value) or not low <= int(value) <= high:
            raise BadRequestError(f"`{name}` must be an integer from {low} to {high}.")
        return int(value)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of several words; the first if none is given."""
        value = self._given.pop(name, choices[0])
        if value not in choices:
            raise BadRequestError(f"`{name}` must be one of {', '.join(choices)}.")
        return value

    def end(self) -> None:
        """Refuse parameters that were not read."""
        if self._given:
            raise BadRequestError("There is an unknown parameter. See /openapi.json.")
