//! One word of each thread, read in two instructions.
//!
//! `thread_local!` in a library is compiled for the case that the library is loaded late, as a call that the linker may
//! take out again, but not the saving of registers around it. On x86-64 the word is laid into the static block of
//! thread-local storage instead (the initial-exec model of the ELF TLS specification, which the C library's own `errno`
//! uses): it is there in every thread from its first to its last instruction, also in a library that is loaded by
//! `dlopen`, for which glibc and musl keep some room. Elsewhere it is a `thread_local!` without destructor.
//!
//! It is null in every new thread.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod word {
    // The name has the version in it: two versions of the crate in one program have a word each.
    core::arch::global_asm!(
        ".pushsection .tbss.pinned_alloc_0_1_thread_word,\"awT\",@nobits",
        ".globl pinned_alloc_0_1_thread_word",
        ".type pinned_alloc_0_1_thread_word, @object",
        ".size pinned_alloc_0_1_thread_word, 8",
        ".p2align 3",
        "pinned_alloc_0_1_thread_word:",
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub(crate) fn get() -> *const () {
        let p: *const ();
        // SAFETY: reads a word of the calling thread's static TLS block, at the offset that the linker or the loader put
        // into the table of offsets.
        unsafe {
            core::arch::asm!(
                "mov {p}, qword ptr [rip + pinned_alloc_0_1_thread_word@GOTTPOFF]",
                "mov {p}, qword ptr fs:[{p}]",
                p = out(reg) p,
                options(nostack, preserves_flags, readonly)
            );
        }
        p
    }

    pub(crate) fn set(p: *const ()) {
        // SAFETY: as in `get`, a write; no other thread reads the word.
        unsafe {
            core::arch::asm!(
                "mov {o}, qword ptr [rip + pinned_alloc_0_1_thread_word@GOTTPOFF]",
                "mov qword ptr fs:[{o}], {p}",
                o = out(reg) _,
                p = in(reg) p,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod word {
    use core::cell::Cell;
    use core::ptr;

    thread_local! {
        static WORD: Cell<*const ()> = const { Cell::new(ptr::null()) };
    }

    #[inline(always)]
    pub(crate) fn get() -> *const () {
        WORD.try_with(Cell::get).unwrap_or(ptr::null())
    }

    pub(crate) fn set(p: *const ()) {
        let _ = WORD.try_with(|w| w.set(p));
    }
}

pub(crate) use word::{get, set};

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    #[test]
    fn each_thread_has_its_own() {
        let before = get();
        std::thread::scope(|s| {
            s.spawn(|| {
                assert!(get().is_null());
                set(ptr::without_provenance(0x1230));
                assert_eq!(get().addr(), 0x1230);
                set(ptr::null());
            });
        });
        assert_eq!(get(), before);
    }
}
