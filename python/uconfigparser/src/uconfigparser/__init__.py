"""A configuration kept as a directory: each section is a subdirectory, each option a file.

>>> config = UConfigParser("/etc/example.d")
>>> config["server"] = {"port": "8080", "host": "localhost"}
>>> config["server"].getint("port")
8080

The interface is that of ``configparser.ConfigParser``, but there is no text to parse. An option is
read when it is requested, and written when it is set: no call reads or rewrites the others. Each is
replaced atomically by a rename, so that a reader sees the old value or the new one, and two writers
of different options do not overwrite each other. An option has the owner and the permissions of its
file. INI files can be imported and exported.

A file contains the value in UTF-8 and a line end; an empty file is an option without a value. Names
that no file can have are percent-encoded. Files whose names begin with a dot are ignored.

After Kooburat and Liu, "Extµ: Using the Inode to Store File Content", section 6.3.
"""

from __future__ import annotations

import configparser
import itertools
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TextIO
from urllib.parse import unquote

from configparser import (
    DEFAULTSECT,
    BasicInterpolation,
    DuplicateOptionError,
    DuplicateSectionError,
    Error,
    ExtendedInterpolation,
    Interpolation,
    NoOptionError,
    NoSectionError,
)

__all__ = [
    "UConfigParser",
    "SectionProxy",
    "DEFAULTSECT",
    "BasicInterpolation",
    "ExtendedInterpolation",
    "Interpolation",
    "Error",
    "NoSectionError",
    "NoOptionError",
    "DuplicateSectionError",
    "DuplicateOptionError",
]

_READ_BYTES = 65536
_RAISE = object()
_temporary_numbers = itertools.count()


def _quote(name: str) -> str:
    """The file name of an option or a section."""
    quoted = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    return quoted or "%"


def _unquote(file_name: str) -> str:
    return unquote(file_name) if file_name != "%" else ""


def _load(path: str) -> str | None:
    """The value in a file; ``None`` if the file is empty."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, _READ_BYTES)
        if len(data) == _READ_BYTES:
            while more := os.read(fd, _READ_BYTES):
                data += more
    finally:
        os.close(fd)
    if not data:
        return None
    text = data.decode()
    return text[:-1] if text.endswith("\n") else text


def _entries(directory: str, is_directory: bool) -> list[str]:
    """The names of the options or the sections in a directory, in alphabetical order."""
    with os.scandir(directory) as found:
        return sorted(
            _unquote(entry.name)
            for entry in found
            if not entry.name.startswith(".") and entry.is_dir() == is_directory
        )


class UConfigParser(MutableMapping[str, "SectionProxy"]):
    """A configuration in a directory, which is created if it does not exist.

    ``defaults``, ``default_section``, ``interpolation``, ``allow_no_value`` and ``converters`` are
    those of ``ConfigParser``. New files get the permissions ``mode``, new directories also search
    permission, minus the umask in both cases; a replaced file keeps its permissions.
    With ``durable``, an option is on the device when ``set`` returns. ``ini`` has further arguments
    of ``ConfigParser``, such as ``delimiters``, for INI files that are imported and exported.
    """

    BOOLEAN_STATES = configparser.RawConfigParser.BOOLEAN_STATES

    def __init__(
        self,
        directory: str | os.PathLike[str],
        defaults: Mapping[str, Any] | None = None,
        *,
        default_section: str = DEFAULTSECT,
        interpolation: Interpolation | None = BasicInterpolation(),
        allow_no_value: bool = False,
        converters: Mapping[str, Callable[[str], Any]] | None = None,
        mode: int = 0o666,
        durable: bool = False,
        ini: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = os.fspath(directory)
        self.default_section = default_section
        self._interpolation = Interpolation() if interpolation is None else interpolation
        self._allow_no_value = allow_no_value
        self._mode = mode
        self._durable = durable
        self._ini = dict(ini or {})
        self.converters: dict[str, Callable[[str], Any]] = {
            "int": int,
            "float": float,
            "boolean": self._to_boolean,
            **(converters or {}),
        }
        os.makedirs(self.directory, mode=self._directory_mode(), exist_ok=True)
        if defaults:
            self.read_dict({default_section: defaults})

    # Options.

    def optionxform(self, option: str) -> str:
        """The form in which names of options are compared and stored: in lower case."""
        return option.lower()

    def get(  # type: ignore[override]
        self,
        section: str,
        option: str,
        *,
        raw: bool = False,
        vars: Mapping[str, Any] | None = None,
        fallback: Any = _RAISE,
    ) -> Any:
        """The value of an option: of ``vars``, of the section, or of the default section."""
        option = self.optionxform(option)
        try:
            if vars:
                vars = {self.optionxform(key): str(value) for key, value in vars.items()}
                value = vars[option] if option in vars else self._find(section, option)
            else:
                value = self._find(section, option)
        except (NoSectionError, NoOptionError):
            if fallback is _RAISE:
                raise
            return fallback
        if raw or value is None:
            return value
        if type(self._interpolation) is BasicInterpolation and "%" not in value:
            return value
        given: dict[str, Any] = dict(vars or {})
        scope = ChainMap(given, _Scope(self, section))  # type: ignore[arg-type]
        return self._interpolation.before_get(self, section, option, value, scope)  # type: ignore[arg-type]

    def _find(self, section: str, option: str) -> str | None:
        for place in (section, self.default_section):
            try:
                return _load(self._path(place, option))
            except (FileNotFoundError, NotADirectoryError):
                pass
        if section != self.default_section and not self.has_section(section):
            raise NoSectionError(section)
        raise NoOptionError(option, section)

    def getint(self, section: str, option: str, **how: Any) -> Any:
        """The value as an integer."""
        return self._convert("int", section, option, how)

    def getfloat(self, section: str, option: str, **how: Any) -> Any:
        """The value as a floating-point number."""
        return self._convert("float", section, option, how)

    def getboolean(self, section: str, option: str, **how: Any) -> Any:
        """The value as a truth value: 1, yes, true and on, or 0, no, false and off."""
        return self._convert("boolean", section, option, how)

    def __getattr__(self, name: str) -> Any:
        kind = name.removeprefix("get")
        if kind == name or kind not in self.__dict__.get("converters", {}):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return lambda section, option, **how: self._convert(kind, section, option, how)

    def _convert(self, kind: str, section: str, option: str, how: dict[str, Any]) -> Any:
        fallback = how.pop("fallback", _RAISE)
        try:
            value = self.get(section, option, **how)
        except (NoSectionError, NoOptionError):
            if fallback is _RAISE:
                raise
            return fallback
        return self.converters[kind](value)

    def _to_boolean(self, value: str) -> bool:
        if value.lower() not in self.BOOLEAN_STATES:
            raise ValueError(f"Not a boolean: {value}")
        return self.BOOLEAN_STATES[value.lower()]

    def set(self, section: str, option: str, value: str | None = None) -> None:
        """Sets an option of an existing section."""
        if not isinstance(option, str):
            raise TypeError("option keys must be strings")
        if not isinstance(value, str) and (value is not None or not self._allow_no_value):
            raise TypeError("option values must be strings")
        if value:
            value = self._interpolation.before_set(self, section, option, value)  # type: ignore[arg-type]
        self._store(section, self.optionxform(option), value)

    def _store(self, section: str, option: str, value: str | None) -> None:
        path = self._path(section, option)
        data = b"" if value is None else f"{value}\n".encode()
        if section == self.default_section:
            os.makedirs(os.path.dirname(path), mode=self._directory_mode(), exist_ok=True)
        try:
            self._replace(path, data)
        except (FileNotFoundError, NotADirectoryError):
            raise NoSectionError(section) from None

    def _replace(self, path: str, data: bytes) -> None:
        directory = os.path.dirname(path)
        number = next(_temporary_numbers)
        temporary = f"{directory}/.{os.getpid()}-{number}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(temporary, flags, self._mode)
        try:
            try:
                self._take_over(path, fd)
                if os.write(fd, data) != len(data):
                    raise OSError(f"{temporary}: written in part")
                if self._durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        if self._durable:
            self._sync(directory)

    @staticmethod
    def _take_over(path: str, fd: int) -> None:
        """Gives a new file the owner and the permissions of the one that it replaces."""
        try:
            before = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return
        now = os.fstat(fd)
        if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
            os.fchown(fd, before.st_uid, before.st_gid)
        if before.st_mode != now.st_mode:
            os.fchmod(fd, before.st_mode & 0o7777)

    @staticmethod
    def _sync(directory: str) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def chmod(self, section: str, option: str, mode: int) -> None:
        """Sets the permissions of an option, which it keeps when it is set again."""
        try:
            os.chmod(self._path(section, self.optionxform(option)), mode)
        except FileNotFoundError:
            raise NoOptionError(option, section) from None

    def has_option(self, section: str, option: str) -> bool:
        """Whether a section, or the default section, has an option."""
        try:
            self._find(section or self.default_section, self.optionxform(option))
        except (NoSectionError, NoOptionError):
            return False
        return True

    def options(self, section: str) -> list[str]:
        """The names of a section's options, and of the defaults."""
        return list(dict.fromkeys([*self._own(section), *self._own(self.default_section)]))

    def _own(self, section: str) -> list[str]:
        """The names of a section's options, without the defaults."""
        try:
            return _entries(self._path(section), is_directory=False)
        except (FileNotFoundError, NotADirectoryError):
            if section == self.default_section:
                return []
            raise NoSectionError(section) from None

    def remove_option(self, section: str, option: str) -> bool:
        """Removes an option; false if it did not exist."""
        try:
            os.unlink(self._path(section, self.optionxform(option)))
        except (FileNotFoundError, NotADirectoryError):
            if section != self.default_section and not self.has_section(section):
                raise NoSectionError(section) from None
            return False
        return True

    # Sections.

    def sections(self) -> list[str]:
        """The names of the sections, without the default section."""
        found = _entries(self.directory, is_directory=True)
        return [section for section in found if section != self.default_section]

    def has_section(self, section: str) -> bool:
        """Whether a section exists; the default section does not count."""
        return section != self.default_section and os.path.isdir(self._path(section))

    def add_section(self, section: str) -> None:
        """Makes an empty section."""
        if not isinstance(section, str):
            raise TypeError("section names must be strings")
        if section == self.default_section:
            raise ValueError(f"Invalid section name: {section!r}")
        try:
            os.mkdir(self._path(section), self._directory_mode())
        except FileExistsError:
            raise DuplicateSectionError(section) from None
        if self._durable:
            self._sync(self.directory)

    def remove_section(self, section: str) -> bool:
        """Removes a section with its options; false if it did not exist."""
        if not self.has_section(section):
            return False
        self._clear(section)
        os.rmdir(self._path(section))
        return True

    def _clear(self, section: str) -> None:
        for option in self._own(section):
            os.unlink(self._path(section, option))

    def defaults(self) -> dict[str, str | None]:
        """The options of the default section."""
        return self._all_of(self.default_section)

    def _all_of(self, section: str) -> dict[str, str | None]:
        return {name: _load(self._path(section, name)) for name in self._own(section)}

    def items(
        self, section: Any = _RAISE, raw: bool = False, vars: Any = None
    ) -> Any:
        """The sections with their names; of one section, its options with their values."""
        if section is _RAISE:
            return super().items()
        names = self.options(section)
        return [(name, self.get(section, name, raw=raw, vars=vars)) for name in names]

    # The mapping of sections.

    def __getitem__(self, section: str) -> SectionProxy:
        if section != self.default_section and not self.has_section(section):
            raise KeyError(section)
        return SectionProxy(self, section)

    def __setitem__(self, section: str, options: Mapping[str, Any]) -> None:
        values = dict(options)
        if section == self.default_section or self.has_section(section):
            self._clear(section)
        self.read_dict({section: values})

    def __delitem__(self, section: str) -> None:
        if section == self.default_section:
            raise ValueError("Cannot remove the default section.")
        if not self.remove_section(section):
            raise KeyError(section)

    def __contains__(self, section: object) -> bool:
        return section == self.default_section or self.has_section(str(section))

    def __len__(self) -> int:
        return len(self.sections()) + 1

    def __iter__(self) -> Iterator[str]:
        return itertools.chain((self.default_section,), self.sections())

    def popitem(self) -> tuple[str, SectionProxy]:
        """Removes a section and returns it, with its options in a mapping."""
        for section in self.sections():
            options = self._all_of(section)
            del self[section]
            return section, options  # type: ignore[return-value]
        raise KeyError

    # All at once, and INI files.

    def read_all(self) -> dict[str, dict[str, str | None]]:
        """All sections with their options, the default section too, as they are stored."""
        places = dict.fromkeys([self.default_section, *self.sections()])
        return {section: self._all_of(section) for section in places}

    def read_dict(self, dictionary: Mapping[str, Mapping[str, Any]], source: str = "<dict>") -> None:
        """Sets all options in a dictionary of sections."""
        strict = self._ini.get("strict", True)
        sections: dict[str, dict[str, Any]] = {}
        for section, options in dictionary.items():
            if str(section) in sections and strict:
                raise DuplicateSectionError(str(section), source)
            names = sections.setdefault(str(section), {})
            for option, value in options.items():
                name = self.optionxform(str(option))
                if name in names and strict:
                    raise DuplicateOptionError(str(section), name, source)
                names[name] = value
        for section, names in sections.items():
            if section not in self:
                self.add_section(section)
            for name, value in names.items():
                self.set(section, name, value if value is None else str(value))

    def read_file(self, file: Iterable[str], source: str | None = None) -> None:
        """Imports an INI file; one that cannot be parsed is not imported in part."""
        parser = self._ini_parser()
        parser.read_file(file, source)
        for section, options in parser.own_options().items():
            if section not in self:
                self.add_section(section)
            for option, value in options.items():
                self._store(section, option, value)

    def read_string(self, string: str, source: str = "<string>") -> None:
        """Imports a string that is an INI file."""
        self.read_file(string.splitlines(keepends=True), source)

    def read(self, filenames: Any, encoding: str | None = None) -> list[str]:
        """Imports the existing ones of some INI files; returns their names."""
        if isinstance(filenames, (str, bytes, os.PathLike)):
            filenames = [filenames]
        found = []
        for name in filenames:
            try:
                with open(name, encoding=encoding or "utf-8") as file:
                    self.read_file(file, os.fspath(name))
            except FileNotFoundError:
                continue
            found.append(os.fspath(name))
        return found

    def write(self, file: TextIO, space_around_delimiters: bool = True) -> None:
        """Exports all to an INI file."""
        parser = self._ini_parser()
        parser.read_dict(self.read_all())
        parser.write(file, space_around_delimiters)

    def _ini_parser(self) -> _IniParser:
        parser = _IniParser(
            default_section=self.default_section,
            allow_no_value=self._allow_no_value,
            **self._ini,
        )
        parser.optionxform = self.optionxform  # type: ignore[method-assign, assignment]
        return parser

    # Places.

    def _path(self, section: str, option: str | None = None) -> str:
        if option is None:
            return f"{self.directory}/{_quote(section)}"
        return f"{self.directory}/{_quote(section)}/{_quote(option)}"

    def _directory_mode(self) -> int:
        return self._mode | (self._mode & 0o444) >> 2


class _IniParser(configparser.RawConfigParser):
    """The parser of INI files, which also gives access to options before they are merged with defaults."""

    def own_options(self) -> dict[str, dict[str, str | None]]:
        """The options of each section without the defaults, and of the default section."""
        return {**self._sections, self.default_section: self._defaults}  # type: ignore[attr-defined]


class _Scope(Mapping[str, "str | None"]):
    """The names that an interpolation can refer to: the options of a section, and the defaults."""

    def __init__(self, parser: UConfigParser, section: str) -> None:
        self._parser, self._section = parser, section

    def __getitem__(self, option: str) -> str | None:
        try:
            return self._parser._find(self._section, option)
        except (NoSectionError, NoOptionError):
            raise KeyError(option) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._parser.options(self._section))

    def __len__(self) -> int:
        return len(self._parser.options(self._section))


class SectionProxy(MutableMapping[str, Any]):
    """The options of one section, read and written through to their files."""

    def __init__(self, parser: UConfigParser, name: str) -> None:
        self._parser, self._name = parser, name

    @property
    def parser(self) -> UConfigParser:
        """The configuration that the section belongs to."""
        return self._parser

    @property
    def name(self) -> str:
        """The name of the section."""
        return self._name

    def __repr__(self) -> str:
        return f"<Section: {self._name}>"

    def __getitem__(self, option: str) -> Any:
        if not self.parser.has_option(self.name, option):
            raise KeyError(option)
        return self.parser.get(self.name, option)

    def __setitem__(self, option: str, value: str | None) -> None:
        self.parser.set(self.name, option, value)

    def __delitem__(self, option: str) -> None:
        if not self.parser.has_option(self.name, option) or not self.parser.remove_option(
            self.name, option
        ):
            raise KeyError(option)

    def __contains__(self, option: object) -> bool:
        return self.parser.has_option(self.name, str(option))

    def __len__(self) -> int:
        return len(self._names())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def _names(self) -> list[str]:
        return self.parser.options(self.name)

    def get(self, option: str, fallback: Any = None, **how: Any) -> Any:
        """The value of an option, or the fallback."""
        return self.parser.get(self.name, option, fallback=fallback, **how)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("get"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        convert = getattr(self.parser, name)
        return lambda option, fallback=None, **how: convert(
            self.name, option, fallback=fallback, **how
        )
