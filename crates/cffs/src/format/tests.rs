//! Tests of the codecs against their own inverse and their own refusals.
