//! How the process keeps its memory.

/// Tells the C library's allocator to keep what tensors free instead of giving it back to the system.
///
/// Tensor operations allocate and free hundreds of megabytes a second; with the default settings each large one maps
/// fresh pages, and the page faults took a fifth of a forward pass. Call it once, before other threads start. A no-op
/// where the C library is not glibc.
pub fn keep_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn mallopt(parameter: i32, value: i32) -> i32;
        }
        const TRIM_THRESHOLD: i32 = -1;
        const TOP_PAD: i32 = -2;
        const MMAP_MAX: i32 = -4;
        // SAFETY: `mallopt` takes two integers and only changes settings; a value it does not like is ignored.
        unsafe {
            mallopt(MMAP_MAX, 0);
            mallopt(TRIM_THRESHOLD, i32::MAX);
            mallopt(TOP_PAD, 256 << 20);
        }
    }
}
