//! The emulated disk for programs and for the kernel.

pub mod pacer;

#[cfg(test)]
mod tests;
