use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;

#[test]
fn discarded_memory_takes_no_pages() {
    let bytes: u32 = 1 << 20;
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("made");
    ftruncate(&file, bytes.into()).expect("set");
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("set");
    let kept = file.try_clone().expect("cloned");
    let memory = SharedMemory::new(file, bytes).expect("sealed");
    memory.write(0, &vec![1; bytes as usize]).expect("written");
    assert!(fstat(&kept).expect("there").st_blocks > 0);
    memory.discard().expect("discarded");
    let left = fstat(&kept).expect("there");
    assert_eq!((left.st_blocks, left.st_size), (0, bytes.into()));
}
