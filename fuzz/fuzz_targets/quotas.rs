#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cffs_fuzz::target("quotas")(data));
