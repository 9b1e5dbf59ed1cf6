//! A native module for Redis and Valkey: slidegate's decisions without Lua.
//!
//! Its commands decide on the values that the scripts store, by the algorithms of the library. What
//! it writes is replicated as `SET`, `SETRANGE` and `PEXPIREAT`, so replicas, restarts and other
//! instances need no module. docs/redis-module.md has the commands.
//!
//! [`api`] is the binding to the server, and with [`allocator`] the only file with `unsafe` code. A panic in a command
//! becomes an error reply, because one that left it would end the server.

// Nothing links this library: servers load it.
#![allow(unreachable_pub)]

mod allocator;
mod api;
mod arguments;
mod commands;
mod value;
