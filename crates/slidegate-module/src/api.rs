//! The binding to the server's module API: with `allocator.rs` the only `unsafe` code.
//!
//! Functions are looked up by name when the module is loaded, so one library runs in Redis 7.0 and later and
//! in Valkey. Code outside these files sees only byte slices and guards.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_longlong, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::allocator::{ALLOC, FREE, REALLOC};
use crate::arguments::{PREFIX, prefix_of};

/// Returned by functions that succeed.
const OK: c_int = 0;
const ERR: c_int = 1;
const API_VERSION: c_int = 1;
/// Options of keys and of the module, as in `redismodule.h`.
const READ_AND_WRITE: c_int = 1 | 2;
const KEYTYPE_EMPTY: c_int = 0;
const KEYTYPE_STRING: c_int = 1;
const NO_IMPLICIT_SIGNAL_MODIFIED: c_int = 1 << 1;
const NOTIFY_GENERIC: c_int = 1 << 2;
const NOTIFY_STRING: c_int = 1 << 3;
/// From this version on, Redis caches the last command of a client: a client that calls it again after the
/// module was unloaded crashes the server. Seen with 8.2.3; Valkey 9.1 does not.
const KEEPS_UNLOADED_COMMANDS: c_int = 0x08_00_00;
/// The server's context of a command.
#[repr(C)]
pub struct RawContext {
    /// The first member, through which modules find the API's functions.
    get_api: Option<unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int>,
}

/// A string of the server.
pub enum RawString {}
enum RawKey {}
enum RawCommand {}

/// A command as called by the server.
pub type RawFunction = unsafe extern "C" fn(*mut RawContext, *mut *mut RawString, c_int) -> c_int;

macro_rules! api {
    ($($field:ident $name:literal: fn($($argument:ty),* $(; $more:tt)?) $(-> $result:ty)?;)*) => {
        /// The functions of the API. `None`: the server does not have the function.
        struct Api {
            $($field: Option<unsafe extern "C" fn($($argument),* $(, $more)?) $(-> $result)?>,)*
        }

        impl Api {
            /// Looks up all functions.
            ///
            /// # Safety
            /// `get` is the server's `GetApi`, which stores the function of a name, of the type that
            /// `redismodule.h` declares.
            unsafe fn load(get: unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int) -> Self {
                Self {
                    $($field: {
                        let mut function = None;
                        let name = concat!("RedisModule_", $name, "\0");
                        // SAFETY: the name ends in NUL. The server stores a function pointer or NULL in an
                        // `Option` of such a pointer, where NULL is `None`.
                        unsafe { get(name.as_ptr().cast(), (&raw mut function).cast()) };
                        function
                    },)*
                }
            }
        }
    };
}

api! {
    set_module_attribs "SetModuleAttribs": fn(*mut RawContext, *const c_char, c_int, c_int);
    is_module_name_busy "IsModuleNameBusy": fn(*const c_char) -> c_int;
    set_module_options "SetModuleOptions": fn(*mut RawContext, c_int);
    create_command "CreateCommand":
        fn(*mut RawContext, *const c_char, RawFunction, *const c_char, c_int, c_int, c_int) -> c_int;
    get_command "GetCommand": fn(*mut RawContext, *const c_char) -> *mut RawCommand;
    add_acl_category "AddACLCategory": fn(*mut RawContext, *const c_char) -> c_int;
    set_command_acl_categories "SetCommandACLCategories": fn(*mut RawCommand, *const c_char) -> c_int;
    string_ptr_len "StringPtrLen": fn(*const RawString, *mut usize) -> *const c_char;
    create_string "CreateString": fn(*mut RawContext, *const c_char, usize) -> *mut RawString;
    free_string "FreeString": fn(*mut RawContext, *mut RawString);
    open_key "OpenKey": fn(*mut RawContext, *mut RawString, c_int) -> *mut RawKey;
    close_key "CloseKey": fn(*mut RawKey);
    key_type "KeyType": fn(*mut RawKey) -> c_int;
    string_dma "StringDMA": fn(*mut RawKey, *mut usize, c_int) -> *mut c_char;
    string_set "StringSet": fn(*mut RawKey, *mut RawString) -> c_int;
    string_truncate "StringTruncate": fn(*mut RawKey, usize) -> c_int;
    delete_key "DeleteKey": fn(*mut RawKey) -> c_int;
    set_abs_expire "SetAbsExpire": fn(*mut RawKey, c_longlong) -> c_int;
    get_abs_expire "GetAbsExpire": fn(*mut RawKey) -> c_longlong;
    signal_modified_key "SignalModifiedKey": fn(*mut RawContext, *mut RawString) -> c_int;
    notify_keyspace_event "NotifyKeyspaceEvent":
        fn(*mut RawContext, c_int, *const c_char, *mut RawString) -> c_int;
    replicate "Replicate": fn(*mut RawContext, *const c_char, *const c_char; ...) -> c_int;
    microseconds "Microseconds": fn() -> c_longlong;
    get_server_version "GetServerVersion": fn() -> c_int;
    log "Log": fn(*mut RawContext, *const c_char, *const c_char; ...);
    reply_with_string_buffer "ReplyWithStringBuffer": fn(*mut RawContext, *const c_char, usize) -> c_int;
    reply_with_array "ReplyWithArray": fn(*mut RawContext, c_long) -> c_int;
    reply_with_long_long "ReplyWithLongLong": fn(*mut RawContext, c_longlong) -> c_int;
    reply_with_error "ReplyWithError": fn(*mut RawContext, *const c_char) -> c_int;
    wrong_arity "WrongArity": fn(*mut RawContext) -> c_int;
    alloc "Alloc": fn(usize) -> *mut c_void;
    free "Free": fn(*mut c_void);
    realloc "Realloc": fn(*mut c_void, usize) -> *mut c_void;
}

static API: OnceLock<Api> = OnceLock::new();

/// Calls an API function. Functions called without a check exist since Redis 7.0, which `load` has verified.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let function = API.get().and_then(|api| api.$function).expect("the server has this function");
        // SAFETY: the function has the type declared in `redismodule.h`. The pointers come from the server
        // and are valid during the command, or point to memory that outlives the call.
        unsafe { function($($argument),*) }
    }};
}

/// The time of the server's `TIME` command, in microseconds since the Unix epoch. `None` before Redis 7.2,
/// which reads the system clock for each `TIME`.
pub(crate) fn server_time_us() -> Option<u64> {
    API.get()?.microseconds?;
    u64::try_from(call!(microseconds())).ok()
}

/// Whether the server is Valkey, which also provides functions under its own names.
static IS_VALKEY: AtomicBool = AtomicBool::new(false);

/// Whether the server survives unloading the module.
fn may_be_unloaded() -> bool {
    let has_version = API.get().is_some_and(|api| api.get_server_version.is_some());
    IS_VALKEY.load(Ordering::Relaxed)
        || (has_version && call!(get_server_version()) < KEEPS_UNLOADED_COMMANDS)
}

/// A command: its name, its keys and its function.
pub(crate) struct Command {
    pub(crate) name: &'static CStr,
    pub(crate) keys: KeyArguments,
    pub(crate) run: RawFunction,
}

/// The first and last arguments that are keys; all between are keys too. -1 is the command's last argument.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyArguments {
    first: c_int,
    last: c_int,
}

/// The first argument is the only key.
pub(crate) const ONE_KEY: KeyArguments = KeyArguments { first: 1, last: 1 };
/// All arguments but the first are keys.
pub(crate) const KEYS_AT_END: KeyArguments = KeyArguments { first: 2, last: -1 };

/// The context of a running command.
pub(crate) struct Context<'c> {
    raw: NonNull<RawContext>,
    lifetime: PhantomData<&'c RawContext>,
}

/// The arguments of a command, starting with its name.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'c>(&'c [*mut RawString]);

/// A key open for reading and writing. It holds a string or is empty.
pub(crate) struct Key<'c> {
    context: &'c Context<'c>,
    raw: NonNull<RawKey>,
    name: *mut RawString,
}

/// The key holds a type other than a string.
pub(crate) struct WrongType;

impl<'c> Arguments<'c> {
    /// # Safety
    /// `first` points to `count` pointers to strings, which live for `'c`; NULL is allowed if there are none.
    unsafe fn new(first: *mut *mut RawString, count: c_int) -> Self {
        match usize::try_from(count) {
            // SAFETY: guaranteed by the caller.
            Ok(count @ 1..) => Self(unsafe { slice::from_raw_parts(first, count) }),
            _ => Self(&[]),
        }
    }

    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// The bytes of an argument; empty if it is missing.
    pub(crate) fn get(self, at: usize) -> &'c [u8] {
        let Some(&string) = self.0.get(at) else { return &[] };
        let mut length = 0;
        let bytes = call!(string_ptr_len(string, &raw mut length));
        // SAFETY: the server owns the argument and its bytes until the command ends.
        unsafe { slice::from_raw_parts(bytes.cast(), length) }
    }
}

impl<'c> Context<'c> {
    fn raw(&self) -> *mut RawContext {
        self.raw.as_ptr()
    }

    pub(crate) fn reply_bytes(&self, bytes: &[u8]) {
        call!(reply_with_string_buffer(self.raw(), bytes.as_ptr().cast(), bytes.len()));
    }

    /// Starts a list; this many replies must follow.
    pub(crate) fn reply_list(&self, length: usize) {
        call!(reply_with_array(self.raw(), c_long::try_from(length).unwrap_or(c_long::MAX)));
    }

    pub(crate) fn reply_number(&self, number: i64) {
        call!(reply_with_long_long(self.raw(), number));
    }

    pub(crate) fn reply_error(&self, message: &str) {
        // An error may quote an argument, and a NUL would end it.
        let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
        call!(reply_with_error(self.raw(), message.as_ptr()));
    }

    pub(crate) fn reply_wrong_arity(&self) {
        call!(wrong_arity(self.raw()));
    }

    /// Opens the key named by this argument.
    pub(crate) fn open(&'c self, arguments: Arguments<'c>, at: usize) -> Result<Key<'c>, WrongType> {
        let name = arguments.0.get(at).copied().unwrap_or(ptr::null_mut());
        let raw = NonNull::new(call!(open_key(self.raw(), name, READ_AND_WRITE))).ok_or(WrongType)?;
        let key = Key { context: self, raw, name };
        match call!(key_type(raw.as_ptr())) {
            KEYTYPE_EMPTY | KEYTYPE_STRING => Ok(key),
            _ => Err(WrongType),
        }
    }
}

impl Key<'_> {
    /// The stored value; `None` if the key is missing.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        if call!(key_type(self.raw.as_ptr())) == KEYTYPE_EMPTY {
            return None;
        }
        let mut length = 0;
        let bytes = call!(string_dma(self.raw.as_ptr(), &raw mut length, READ_AND_WRITE));
        // SAFETY: the bytes stay in place until the key is closed or written to, which needs `&mut self`.
        (!bytes.is_null()).then(|| unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) })
    }

    /// Overwrites bytes of the stored value. Does nothing if the value is too short.
    pub(crate) fn overwrite(&mut self, from: usize, bytes: &[u8]) {
        let mut length = 0;
        let stored = call!(string_dma(self.raw.as_ptr(), &raw mut length, READ_AND_WRITE));
        if stored.is_null() {
            return;
        }
        // SAFETY: as in `value`; opened for writing, the bytes belong to the key.
        let stored = unsafe { slice::from_raw_parts_mut(stored.cast::<u8>(), length) };
        if let Some(stored) = stored.get_mut(from..).and_then(|rest| rest.get_mut(..bytes.len())) {
            stored.copy_from_slice(bytes);
        }
    }

    /// Extends the stored value to this length with zeros.
    pub(crate) fn grow(&mut self, length: usize) {
        call!(string_truncate(self.raw.as_ptr(), length));
    }

    pub(crate) fn delete(&mut self) {
        call!(delete_key(self.raw.as_ptr()));
    }

    /// When the key expires, in milliseconds since the Unix epoch. `None`: never.
    pub(crate) fn expiry(&self) -> Option<u64> {
        u64::try_from(call!(get_abs_expire(self.raw.as_ptr()))).ok()
    }

    /// Replaces the stored value and removes the expiry.
    pub(crate) fn replace(&mut self, value: &[u8]) {
        let context = self.context.raw();
        let string = call!(create_string(context, value.as_ptr().cast(), value.len()));
        call!(string_set(self.raw.as_ptr(), string));
        call!(free_string(context, string));
    }

    /// Sets the expiry time, in milliseconds since the Unix epoch.
    pub(crate) fn expire_at(&mut self, at_ms: u64) {
        call!(set_abs_expire(self.raw.as_ptr(), c_longlong::try_from(at_ms).unwrap_or(c_longlong::MAX)));
    }

    /// Signals the key as modified, for `WATCH` and client-side caches.
    pub(crate) fn signal(&self) {
        call!(signal_modified_key(self.context.raw(), self.name));
    }

    /// Notifies subscribers of keyspace events, like the server's own commands.
    fn notify(&self, kind: c_int, event: &CStr) {
        call!(notify_keyspace_event(self.context.raw(), kind, event.as_ptr(), self.name));
    }

    /// Sends `SET key value PXAT at_ms` to replicas and the append-only file. Call this and the functions
    /// below, which also send events, after storing the value.
    pub(crate) fn replicate_set(&self, value: &[u8], at_ms: u64) {
        self.notify(NOTIFY_STRING, c"set");
        self.notify(NOTIFY_GENERIC, c"expire");
        call!(replicate(
            self.context.raw(),
            c"SET".as_ptr(),
            c"sbcl".as_ptr(),
            self.name,
            value.as_ptr(),
            value.len(),
            c"PXAT".as_ptr(),
            c_longlong::try_from(at_ms).unwrap_or(c_longlong::MAX),
        ));
    }

    /// Sends `SETRANGE key from bytes` with the stored bytes. Does nothing if the value is too short.
    pub(crate) fn replicate_range(&mut self, from: usize, length: usize) {
        // Subscribers may change the key, so no slice of its value is held while they run.
        self.notify(NOTIFY_STRING, c"setrange");
        let Some(bytes) =
            self.value().and_then(|value| value.get(from..)).and_then(|rest| rest.get(..length))
        else {
            return;
        };
        call!(replicate(
            self.context.raw(),
            c"SETRANGE".as_ptr(),
            c"slb".as_ptr(),
            self.name,
            c_longlong::try_from(from).unwrap_or(c_longlong::MAX),
            bytes.as_ptr(),
            bytes.len(),
        ));
    }

    /// Sends `DEL key`.
    pub(crate) fn replicate_delete(&self) {
        self.notify(NOTIFY_GENERIC, c"del");
        call!(replicate(self.context.raw(), c"DEL".as_ptr(), c"s".as_ptr(), self.name));
    }

    /// Sends `RENAME key to`.
    pub(crate) fn replicate_rename(&self, to: &Self) {
        self.notify(NOTIFY_GENERIC, c"rename_from");
        to.notify(NOTIFY_GENERIC, c"rename_to");
        call!(replicate(self.context.raw(), c"RENAME".as_ptr(), c"ss".as_ptr(), self.name, to.name));
    }

    /// Sends `PEXPIREAT key at_ms`.
    pub(crate) fn replicate_expiry(&self, at_ms: u64) {
        self.notify(NOTIFY_GENERIC, c"expire");
        call!(replicate(
            self.context.raw(),
            c"PEXPIREAT".as_ptr(),
            c"sl".as_ptr(),
            self.name,
            c_longlong::try_from(at_ms).unwrap_or(c_longlong::MAX),
        ));
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        call!(close_key(self.raw.as_ptr()));
    }
}

/// Runs a command. A panic becomes an error reply.
///
/// # Safety
/// The arguments are those of a command that the server calls.
pub(crate) unsafe fn run(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
    command: impl FnOnce(&Context<'_>, Arguments<'_>),
) -> c_int {
    let Some(raw) = NonNull::new(context) else { return ERR };
    let context = Context { raw, lifetime: PhantomData };
    // SAFETY: the server passes this many pointers to strings, which live until the command ends.
    let arguments = unsafe { Arguments::new(arguments, count) };
    let run = || command(&context, arguments);
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        let report =
            || context.reply_error("SLIDEGATE internal error: the module panicked; nothing was charged");
        // A second panic leaves nothing to report.
        let _ = catch_unwind(AssertUnwindSafe(report));
    }
    OK
}

/// Registers the module and its commands. Returns the result of `RedisModule_OnLoad`.
///
/// # Safety
/// `context` and `arguments` are those of `RedisModule_OnLoad`.
pub(crate) unsafe fn load(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
    version: c_int,
    commands: &[Command],
) -> c_int {
    let name = c"slidegate";
    // SAFETY: the server passes this many pointers to strings, which live until the module is loaded.
    let arguments = unsafe { Arguments::new(arguments, count) };
    // SAFETY: the server's context begins with this pointer.
    let Some(get) = (unsafe { context.as_ref() }).and_then(|context| context.get_api) else { return ERR };
    // SAFETY: it is the server's.
    let api = unsafe { Api::load(get) };
    let mut of_valkey: *mut c_void = ptr::null_mut();
    // SAFETY: the name ends in NUL, and a pointer is stored if the function exists.
    let is_found = unsafe { get(c"ValkeyModule_Alloc".as_ptr(), (&raw mut of_valkey).cast()) } == OK;
    IS_VALKEY.store(is_found && !of_valkey.is_null(), Ordering::Relaxed);
    let (Some(alloc), Some(realloc), Some(free)) = (api.alloc, api.realloc, api.free) else { return ERR };
    ALLOC.store(alloc as *mut c_void, Ordering::Relaxed);
    REALLOC.store(realloc as *mut c_void, Ordering::Relaxed);
    FREE.store(free as *mut c_void, Ordering::Relaxed);
    let has_all = api.set_module_options.is_some()
        && api.set_abs_expire.is_some()
        && api.get_abs_expire.is_some()
        && api.notify_keyspace_event.is_some()
        && api.signal_modified_key.is_some()
        && api.replicate.is_some();
    let _ = API.set(api);
    let register = || {
        if !has_all || call!(is_module_name_busy(name.as_ptr())) != 0 {
            return ERR;
        }
        let given: Vec<_> = (0..arguments.len()).map(|at| arguments.get(at)).collect();
        let prefix = match prefix_of(&given) {
            Ok(prefix) => prefix,
            Err(error) => {
                let error = CString::new(error.replace('\0', "\\0")).unwrap_or_default();
                call!(log(context, c"warning".as_ptr(), c"%s".as_ptr(), error.as_ptr()));
                return ERR;
            }
        };
        call!(set_module_attribs(context, name.as_ptr(), version, API_VERSION));
        // Otherwise opening a key for writing counts as a change, even for a denial.
        call!(set_module_options(context, NO_IMPLICIT_SIGNAL_MODIFIED));
        let has_categories = API
            .get()
            .is_some_and(|api| api.add_acl_category.is_some() && api.set_command_acl_categories.is_some());
        if has_categories {
            // Fails if the module is loaded again, because servers keep categories, or if there are too many:
            // then the commands are only in the other two.
            call!(add_acl_category(context, c"slidegate".as_ptr()));
        }
        for Command { name, keys: KeyArguments { first, last }, run } in commands {
            let named = name.to_bytes().strip_prefix(PREFIX.as_bytes());
            let named = named.and_then(|rest| CString::new([prefix.as_bytes(), rest].concat()).ok());
            let name = named.as_deref().unwrap_or(name);
            let flags = c"write fast deny-oom".as_ptr();
            if call!(create_command(context, name.as_ptr(), *run, flags, *first, *last, 1)) != OK {
                return ERR;
            }
            if has_categories {
                let command = call!(get_command(context, name.as_ptr()));
                let set = |to: &CStr| call!(set_command_acl_categories(command, to.as_ptr())) == OK;
                if command.is_null() || !(set(c"write fast slidegate") || set(c"write fast")) {
                    return ERR;
                }
            }
        }
        OK
    };
    catch_unwind(AssertUnwindSafe(register)).unwrap_or(ERR)
}

/// Unloads the module if the server survives it. Returns the result of `RedisModule_OnUnload`.
pub(crate) fn unload() -> c_int {
    if catch_unwind(may_be_unloaded).unwrap_or(false) { OK } else { ERR }
}

/// Defines the entry points: one per command, and those for loading and unloading the module.
macro_rules! entry_points {
    ($version:ident: $($name:literal $keys:ident $function:ident = $command:path;)*) => {
        $(
            /// As the server calls it.
            #[allow(unsafe_code)]
            unsafe extern "C" fn $function(
                context: *mut $crate::api::RawContext,
                arguments: *mut *mut $crate::api::RawString,
                count: std::ffi::c_int,
            ) -> std::ffi::c_int {
                // SAFETY: the server calls it as a command.
                unsafe { $crate::api::run(context, arguments, count, $command) }
            }
        )*

        /// Called by the server when it loads the module.
        ///
        /// # Safety
        /// Only a server may call it.
        // SAFETY: the name is the one that servers look for, and nothing else defines it.
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn RedisModule_OnLoad(
            context: *mut $crate::api::RawContext,
            arguments: *mut *mut $crate::api::RawString,
            count: std::ffi::c_int,
        ) -> std::ffi::c_int {
            use $crate::api::{Command, load};
            let commands = [$(Command { name: $name, keys: $crate::api::$keys, run: $function }),*];
            // SAFETY: the server calls it to load the module.
            unsafe { load(context, arguments, count, $version, &commands) }
        }

        /// Called by the server before it unloads the module; may refuse.
        ///
        /// # Safety
        /// Only a server may call it.
        // SAFETY: as above.
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn RedisModule_OnUnload(_context: *mut $crate::api::RawContext) -> std::ffi::c_int {
            $crate::api::unload()
        }
    };
}
pub(crate) use entry_points;
