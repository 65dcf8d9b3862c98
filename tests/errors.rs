//! What errors say: each variant's text, its cure, its errno and its source, and what the type promises.

use pinned_alloc::os::{Call, OsError};
use pinned_alloc::traits::{Fallback, Partition, key, value};
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle, Cause, Error, PinnedAlloc, ReallocPolicy, TraitError, Traits, routines,
};
use std::alloc::Layout;
use std::error::Error as _;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// An unpinned allocator that fails rather than fall back.
fn plain() -> AllocatorBuilder {
    AllocatorBuilder::new().fallback(Fallback::Null)
}

#[test]
fn an_error_can_be_sent_shown_and_compared() {
    fn all<T: std::error::Error + Send + Sync + Copy + PartialEq + std::fmt::Debug + 'static>() {}
    all::<Error>();
    all::<TraitError>();
    all::<pinned_alloc::PagesError>();
    all::<OsError>();
    let boxed: Box<dyn std::error::Error + Send + Sync> = Error::Size.into();
    assert!(boxed.is::<Error>());
    assert!(format!("{:?}", Error::TooMany).contains("TooMany"));
}

#[test]
fn every_variant_says_what_and_why() {
    let handle = AllocatorHandle::from_raw(0xabc);
    for (e, says) in [
        (Error::Pool { pool_size: 100, used: 90, asked: 11 }, "pool_size is 100 bytes, 90 used, asked 11"),
        (Error::Alignment { align: 3 }, "alignment 3 is no power of two"),
        (Error::Size, "larger than an object can be"),
        (Error::NoRoom { asked: 70, capacity: 60 }, "cannot have 70 bytes where it is, 60 at most"),
        (
            Error::FallbackGone { handle },
            "the allocator cannot serve, and its fallback, the allocator 0xabc, has been destroyed",
        ),
        (Error::Handle { handle }, "no allocator has the handle 0xabc"),
        (Error::NotABlock { addr: 0x1000 }, "no live block begins at 0x1000"),
        (Error::FallbackCycle, "every allocator of the fallback chain has been asked"),
        (Error::Traits(TraitError::Key { key: 99 }), "no allocator trait has the key 99"),
        (Error::Traits(TraitError::Value { key: 2, value: 3 }), "the allocator trait alignment cannot be 3"),
        (Error::Traits(TraitError::MissingFbData), "there is no fb_data"),
        (Error::Traits(TraitError::MissingPartitioner), "there is no partitioner"),
        (Error::Partition, "parts do not make up the allocation"),
        (Error::TooMany, "as many allocators as can be kept"),
        (Error::Exhausted, "the lock limit is used up"),
    ] {
        let text = e.to_string();
        assert!(text.contains(says), "{text}");
        assert!(!text.contains('\n') && !text.ends_with('.'), "one line, to be put into another: {text}");
        assert_eq!((e.raw_os_error(), e.cure().is_none(), e.is_lock_limit()), (None, true, false), "{e:?}");
        assert_eq!(e.source().is_some(), matches!(e, Error::Traits(_)), "{e:?}");
    }
    assert_eq!(Error::from(TraitError::MissingFbData), Error::Traits(TraitError::MissingFbData));
}

#[test]
fn an_error_of_the_kernel_leads_to_the_call() {
    // More than the address space has: the one failure of the kernel that every situation has.
    let e = plain().build().unwrap().allocate(layout(1 << 50)).unwrap_err();
    let Error::Pages(p) = e else { panic!("{e:?}") };
    assert_eq!((p.asked, p.os.call, p.os.errno), (1 << 50, Call::Mmap, libc::ENOMEM));
    assert!(matches!(p.cause, Cause::Memory { .. }), "{p:?}");
    assert_eq!((e.raw_os_error(), p.raw_os_error(), p.os.raw_os_error()), (Some(12), 12, 12));
    let text = e.to_string();
    assert!(text.starts_with("cannot get 1024 TiB: out of memory") && text.contains("mmap of"), "{text}");
    assert_eq!(text, p.to_string());
    assert_eq!(e.cure().unwrap().to_string(), p.cure().to_string());
    assert!(!e.cure().unwrap().to_string().contains("ulimit"), "the lock limit has nothing to do with it");
    // Error, PagesError, OsError: each is the next one's source.
    let pages = e.source().unwrap().downcast_ref::<pinned_alloc::PagesError>().unwrap();
    let os = pages.source().unwrap().downcast_ref::<OsError>().unwrap();
    assert_eq!((pages, *os), (&p, p.os));
    assert!(os.source().is_none() && os.to_string().starts_with("mmap of "));
    assert!(os.to_string().to_lowercase().contains("memory"), "the errno in words: {os}");
}

#[test]
fn every_call_has_its_name() {
    let names = Call::ALL.map(Call::name);
    assert_eq!(
        names,
        [
            "mmap",
            "munmap",
            "mprotect",
            "mlock",
            "munlock",
            "mremap",
            "madvise",
            "mbind",
            "pthread_create",
            "pthread_atfork"
        ]
    );
}

/// The errors as the calls give them, and that nothing has changed when they do.
#[test]
fn each_error_comes_from_its_cause() {
    let a = plain().pool_size(1000).build().unwrap();
    let b = a.allocate(layout(900)).unwrap().cast::<u8>();
    let full = Error::Pool { pool_size: 1000, used: 900, asked: 101 };
    assert_eq!(a.allocate(layout(101)), Err(full));
    // SAFETY: a live block of this allocator and layout; each call fails and leaves it.
    unsafe {
        let more = Error::Pool { pool_size: 1000, used: 900, asked: 101 };
        assert_eq!(a.realloc(b, layout(900), 1001, ReallocPolicy::MayMove), Err(more));
        let e = a.realloc(b, layout(900), 1000, ReallocPolicy::Fixed).unwrap_err();
        assert_eq!(e, Error::NoRoom { asked: 1000, capacity: a.usable_size(b) });
        assert!(
            a.realloc_aligned(
                b,
                layout(900),
                Layout::from_size_align(900, 1 << 30).unwrap(),
                ReallocPolicy::Fixed
            )
            .is_err_and(|e| matches!(e, Error::NoRoom { asked: 900, .. }))
        );
    }
    assert_eq!((a.stats().live_blocks, a.stats().requested), (1, 900));
    // SAFETY: live, of this layout, not used again; then an address where no block begins.
    unsafe {
        a.deallocate(b, layout(900));
        let inside = b.as_ptr().add(1);
        let not = Error::NotABlock { addr: inside.addr() };
        assert_eq!(routines::free(inside, AllocatorHandle::NULL), Err(not));
        assert_eq!(routines::realloc(inside, 5, a.handle(), AllocatorHandle::NULL), Err(not));
        let gone = Error::NotABlock { addr: b.as_ptr().addr() };
        assert_eq!(routines::free(b.as_ptr(), AllocatorHandle::NULL), Err(gone), "freed twice");
    }
    let handle = a.handle();
    drop(a);
    assert_eq!(routines::alloc(1, handle), Err(Error::Handle { handle }));
    assert_eq!(PinnedAlloc::from_handle(handle).unwrap_err(), Error::Handle { handle });
    for align in [3, 24, (1 << 31) + 1, 1 << 31, 1 << 63] {
        assert_eq!(
            routines::aligned_alloc(align, 8, AllocatorHandle::DEFAULT_MEM),
            Err(Error::Alignment { align })
        );
    }
    assert_eq!(routines::alloc(usize::MAX, AllocatorHandle::DEFAULT_MEM), Err(Error::Size));
    assert_eq!(routines::calloc(1 << 40, 1 << 40, AllocatorHandle::DEFAULT_MEM), Err(Error::Size));
}

#[test]
fn traits_that_cannot_be_met() {
    for (pairs, e) in [
        (vec![(77, 1)], TraitError::Key { key: 77 }),
        (vec![(key::PINNED, 1), (key::POOL_SIZE, 0)], TraitError::Value { key: key::POOL_SIZE, value: 0 }),
        (vec![(key::FALLBACK, value::ALLOCATOR_FB)], TraitError::MissingFbData),
        (vec![(key::PARTITION, value::PARTITIONER)], TraitError::MissingPartitioner),
    ] {
        assert_eq!(Traits::from_raw(pairs.clone()), Err(e));
        let got = routines::init_allocator(pinned_alloc::MemSpace::Default, pairs);
        assert_eq!(got, Err(Error::Traits(e)));
    }
    // What the typed builder can be told, and no host allocator can be.
    for b in [plain().pool_size(0), plain().part_size(0), plain().pin_device(3), plain().preferred_device(-2)]
    {
        let e = b.build().unwrap_err();
        assert!(matches!(e, Error::Traits(TraitError::Value { .. })), "{e}");
    }
    assert!(plain().partition(Partition::Blocked).pin_device(-1).preferred_device(0).build().is_ok());
}
