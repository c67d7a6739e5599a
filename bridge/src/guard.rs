//! Turns a panic inside a bridged call into an error, so that no input can end the process.

use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::Once;

/// Runs `f`; a panic becomes `Err` with its message. The default hook would print to stderr, so it is replaced
/// once for the process: every panic of this crate is reported through the returned error instead.
pub fn guarded<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| set_hook(Box::new(|_| {})));
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let text = payload
            .downcast_ref::<&str>()
            .map(|s| s.to_string())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_string());
        Err(format!("internal error: {text}"))
    })
}
