//! Programs in C, compiled and linked with a library of this workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().expect("a program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// Builds the libraries of a package, which cargo does not do for tests by itself, and returns where they
/// are. `CFFS_LIBRARIES` names the directory that has them if all targets of the workspace were built:
/// by itself the package is built with fewer features of its dependencies, and these are compiled again.
pub fn libraries(package: &str) -> PathBuf {
    if let Some(built) = std::env::var_os("CFFS_LIBRARIES") {
        return built.into();
    }
    let program = std::env::current_exe().expect("this program");
    let target = program.ancestors().nth(3).expect("the build's directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", package, "--target-dir"]).arg(target);
    run(cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
    target.join("debug")
}

/// Compiles a C source of the package under test, with its header, against a library. The program
/// finds a shared library in its own directory, by its SONAME.
pub fn compile(source: &str, library: &Path, to: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let at = to.parent().expect("the program's directory");
    let name = library.file_name().and_then(|name| name.to_str()).expect("a name");
    let soname = at.join(format!("{name}.{}", env!("CARGO_PKG_VERSION_MAJOR")));
    std::os::unix::fs::symlink(library, soname).expect("a link");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-I"])
        .arg(here.join("include"));
    cc.arg(here.join(source)).arg(library).arg(format!("-Wl,-rpath,{}", at.display()));
    run(cc.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(to));
}
