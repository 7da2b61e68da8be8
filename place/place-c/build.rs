//! Gives the shared library its SONAME, so that a program that is linked with it starts only with one that
//! has the same functions: its number is the first of the version.

fn main() {
    let soname = concat!("libplace.so.", env!("CARGO_PKG_VERSION_MAJOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    println!("cargo::rerun-if-changed=build.rs");
}
