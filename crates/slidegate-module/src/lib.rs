//! A native module for Redis and Valkey: slidegate's decisions without Lua.
//!
//! Its commands decide on the values that the scripts store, with the library's algorithms. Writes are
//! replicated as `SET`, `SETRANGE` and `PEXPIREAT`, so replicas, restarts and other instances need no module.
//! docs/redis-module.md describes the commands.
//!
//! [`api`] is the binding to the server and, with [`allocator`], the only file with `unsafe` code. A panic in
//! a command becomes an error reply, because an escaping panic would end the server.

// Nothing links this library: servers load it.
#![allow(unreachable_pub)]

mod allocator;
mod api;
mod arguments;
mod commands;
mod value;
