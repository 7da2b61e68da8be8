//! Which files a command opens, in order.
