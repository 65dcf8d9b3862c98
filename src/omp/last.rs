//! The last error of the calling thread, for interfaces that lose it.

use super::error::Error;
use core::cell::Cell;

thread_local! {
    // No destructor and no heap: it is set inside a global allocator.
    static LAST: Cell<Option<Error>> = const { Cell::new(None) };
}

/// Why the calling thread's last failed request failed that was made through a collection or as the global allocator:
/// `AllocError` and a null pointer carry no reason. `None` if none failed.
///
/// Later successes do not clear it. Errors that were returned as [`Error`] are not noted.
///
/// ```
/// # #[cfg(feature = "allocator-api2")] {
/// use allocator_api2::vec::Vec;
/// use pinned_alloc::{Error, PinnedAlloc, last_error};
///
/// let small = PinnedAlloc::builder().pool_size(1000).build()?;
/// let mut v: Vec<u8, _> = Vec::new_in(small);
/// assert!(v.try_reserve(2000).is_err());
/// let why = last_error().unwrap();
/// assert_eq!(why, Error::Pool { pool_size: 1000, used: 0, asked: 2000 });
/// println!("{why}");
/// # }
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[must_use]
pub fn last_error() -> Option<Error> {
    LAST.try_with(Cell::get).ok().flatten()
}

/// Takes note of an error that is about to be lost.
pub(crate) fn note(e: Error) {
    let _ = LAST.try_with(|l| l.set(Some(e)));
}
