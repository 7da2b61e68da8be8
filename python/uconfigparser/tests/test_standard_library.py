"""The standard library's own tests of configparser, with UConfigParser in its place.

Those that do not apply are named below, with the reason.
"""

import shutil
import tempfile
import unittest

try:
    from test import test_configparser as standard
except ImportError as missing:
    raise unittest.SkipTest("the standard library's tests are not installed") from missing

from uconfigparser import UConfigParser


class InDirectories:
    """Creates the parsers of a test in separate directories."""

    def newconfig(self, defaults=None):
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        interpolation = self.interpolation
        if interpolation is standard.configparser._UNSET:
            interpolation = self.config_class._DEFAULT_INTERPOLATION
        return UConfigParser(
            directory,
            defaults,
            default_section=self.default_section,
            interpolation=interpolation,
            allow_no_value=self.allow_no_value,
            ini={
                "delimiters": self.delimiters,
                "comment_prefixes": self.comment_prefixes,
                "inline_comment_prefixes": self.inline_comment_prefixes,
                "empty_lines_in_values": self.empty_lines_in_values,
                "strict": self.strict,
            },
        )


def not_applicable(reason):
    def test(self):
        self.skipTest(reason)

    return test


IN_PART = "what cannot be parsed is not imported in part"
ORDER = "sections come in alphabetical order"
STRINGS = "a file holds a string, never another object"
APPLICABLE = [
    "ConfigParserTestCase",
    "ConfigParserTestCaseExtendedInterpolation",
    "ConfigParserTestCaseNoInterpolation",
    "ConfigParserTestCaseNoValue",
    "ConfigParserTestCaseNonStandardDefaultSection",
    "ConfigParserTestCaseNonStandardDelimiters",
    "ConfigParserTestCaseTrickyFile",
    "CompatibleTestCase",
    "MultilineValuesTestCase",
    "RawConfigParserTestCase",
    "RawConfigParserTestCaseNonStandardDelimiters",
    "RawConfigParserTestSambaConf",
    "StrictTestCase",
]
NOT_APPLICABLE = {
    "test_invalid_multiline_value": IN_PART,
    "test_set_nonstring_types": {
        "RawConfigParserTestCase": STRINGS,
        "RawConfigParserTestCaseNonStandardDelimiters": STRINGS,
    },
    "test_defaults_keyword": {
        "RawConfigParserTestCase": STRINGS,
        "RawConfigParserTestCaseNonStandardDelimiters": STRINGS,
    },
    "test_reading": {"RawConfigParserTestSambaConf": ORDER},
    "test_cfgparser_dot_3": ORDER,
}

for name in APPLICABLE:
    skipped = {}
    for test, reasons in NOT_APPLICABLE.items():
        reason = reasons.get(name) if isinstance(reasons, dict) else reasons
        if reason and hasattr(getattr(standard, name), test):
            skipped[test] = not_applicable(reason)
    globals()[name] = type(name, (InDirectories, getattr(standard, name)), skipped)

if __name__ == "__main__":
    unittest.main()
