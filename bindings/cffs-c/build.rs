//! Sets the SONAME of the shared library, so that a linked program starts only with a library that has the
//! same functions: its number is the major version.

fn main() {
    let soname = concat!("libcffs.so.", env!("CARGO_PKG_VERSION_MAJOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    println!("cargo::rerun-if-changed=build.rs");
}
