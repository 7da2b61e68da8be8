//! Decoding of requests.

use zerocopy::FromBytes;

use super::{
    Context, CopyFileRange, Create, Dialect, Extensions, Fallocate, FileHandle, Forgets, Frame,
    InitRequest, Ioctl, LockOwner, Malformed, NodeId, Opcode, Open, Operation, Read, Release,
    Rename, Request, SetAttr, SetTime, SetXattr, Timestamp, Unique, Write, wire,
};

impl<'a> Request<'a> {
    /// Decodes a message.
    pub fn decode(frame: &Frame<'a>, dialect: Dialect) -> Result<Request<'a>, Malformed> {
        let header = &frame.header;
        let extension_len = usize::from(header.total_extlen) * 8;
        let payload_len =
            frame.payload.len().checked_sub(extension_len).ok_or(Malformed::Extensions)?;
        let (payload, extensions) = frame.payload.split_at(payload_len);
        let operation = match frame.opcode() {
            Some(opcode) => {
                let mut body = Body { argument: frame.argument, rest: payload };
                let operation = operation(opcode, &mut body, dialect)?;
                body.end()?;
                operation
            }
            None => Operation::Unknown { opcode: header.opcode },
        };
        Ok(Request {
            context: Context {
                unique: Unique(header.unique),
                uid: header.uid,
                gid: header.gid,
                pid: header.pid,
                extensions: Extensions::decode(extensions)?,
            },
            node: NodeId(header.nodeid),
            operation,
        })
    }
}

/// The bytes after the header, consumed from the front.
struct Body<'a> {
    argument: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    fn argument<T: FromBytes>(&self) -> Result<T, Malformed> {
        T::read_from_bytes(self.argument).map_err(|_| Malformed::Truncated("argument"))
    }

    /// Everything up to a NUL, which is skipped.
    fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(Malformed::Unterminated)?;
        let string = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(string)
    }

    /// The name of a directory entry.
    fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.string()?;
        if name.is_empty() || name.contains(&b'/') {
            return Err(Malformed::Name);
        }
        Ok(name)
    }

    /// The name of an extended attribute, which may have slashes.
    fn xattr_name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.string()?;
        if name.is_empty() { Err(Malformed::Name) } else { Ok(name) }
    }

    /// All remaining bytes, whose number must be the announced one.
    fn data(&mut self, size: u32) -> Result<&'a [u8], Malformed> {
        if self.rest.len() != size as usize {
            return Err(Malformed::Count("size"));
        }
        Ok(std::mem::take(&mut self.rest))
    }

    fn all(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Trailing(self.rest.len())) }
    }
}

fn operation<'a>(
    opcode: Opcode,
    body: &mut Body<'a>,
    dialect: Dialect,
) -> Result<Operation<'a>, Malformed> {
    Ok(match opcode {
        Opcode::Lookup => Operation::Lookup { name: body.name()? },
        Opcode::Forget => Operation::Forget { lookups: body.argument::<wire::ForgetIn>()?.nlookup },
        Opcode::BatchForget => Operation::BatchForget(forgets(body)?),
        Opcode::GetAttr => get_attr(&body.argument()?),
        Opcode::Statx => statx(&body.argument()?),
        Opcode::SetAttr => Operation::SetAttr(set_attr(&body.argument()?)),
        Opcode::ReadLink => Operation::ReadLink,
        Opcode::Symlink => Operation::Symlink { name: body.name()?, target: body.string()? },
        Opcode::MkNod => make_node(&body.argument()?, body.name()?),
        Opcode::MkDir => make_dir(&body.argument()?, body.name()?),
        Opcode::Unlink => Operation::Unlink { name: body.name()? },
        Opcode::RmDir => Operation::RmDir { name: body.name()? },
        Opcode::Rename => Operation::Rename(rename(body)?),
        Opcode::Rename2 => Operation::Rename(rename_with_flags(body)?),
        Opcode::Link => link(&body.argument()?, body.name()?),
        Opcode::Open => Operation::Open(open(&body.argument()?)),
        Opcode::OpenDir => Operation::OpenDir(open(&body.argument()?)),
        Opcode::Read => Operation::Read(read(&body.argument()?)),
        Opcode::ReadDir => Operation::ReadDir(read(&body.argument()?)),
        Opcode::ReadDirPlus => Operation::ReadDirPlus(read(&body.argument()?)),
        Opcode::Write => Operation::Write(write(&body.argument()?, body)?),
        Opcode::StatFs => Operation::StatFs,
        Opcode::Release => Operation::Release(release(&body.argument()?)),
        Opcode::ReleaseDir => Operation::ReleaseDir(release(&body.argument()?)),
        Opcode::Fsync => {
            let (handle, data_only) = fsync(&body.argument()?);
            Operation::Fsync { handle, data_only }
        }
        Opcode::FsyncDir => {
            let (handle, data_only) = fsync(&body.argument()?);
            Operation::FsyncDir { handle, data_only }
        }
        Opcode::SetXattr => Operation::SetXattr(set_xattr(body, dialect)?),
        Opcode::GetXattr => get_xattr(&body.argument()?, body.xattr_name()?),
        Opcode::ListXattr => {
            Operation::ListXattr { size: body.argument::<wire::GetxattrIn>()?.size }
        }
        Opcode::RemoveXattr => Operation::RemoveXattr { name: body.xattr_name()? },
        Opcode::Flush => flush(&body.argument()?),
        Opcode::Init => Operation::Init(InitRequest::decode(body.all())?),
        Opcode::GetLk | Opcode::SetLk | Opcode::SetLkW => {
            body.argument::<wire::LkIn>()?;
            Operation::Lock
        }
        Opcode::Access => Operation::Access { mask: body.argument::<wire::AccessIn>()?.mask },
        Opcode::Create => {
            let create = create(&body.argument()?);
            Operation::Create { name: body.name()?, create }
        }
        Opcode::TmpFile => {
            let create = create(&body.argument()?);
            // The kernel sends the name of the dentry that it uses, which is meaningless.
            body.all();
            Operation::TmpFile { create }
        }
        Opcode::Interrupt => {
            Operation::Interrupt { unique: Unique(body.argument::<wire::InterruptIn>()?.unique) }
        }
        Opcode::Bmap => bmap(&body.argument()?),
        Opcode::Destroy => Operation::Destroy,
        Opcode::Ioctl => Operation::Ioctl(ioctl(&body.argument()?, body)?),
        Opcode::Poll => Operation::Poll { handle: FileHandle(body.argument::<wire::PollIn>()?.fh) },
        Opcode::Fallocate => Operation::Fallocate(fallocate(&body.argument()?)),
        Opcode::Lseek => lseek(&body.argument()?),
        Opcode::CopyFileRange => Operation::CopyFileRange(copy(&body.argument()?, false)),
        Opcode::CopyFileRange64 => Operation::CopyFileRange(copy(&body.argument()?, true)),
        Opcode::SyncFs => Operation::SyncFs,
    })
}

fn handle_if(flag: u32, fh: u64) -> Option<FileHandle> {
    (flag != 0).then_some(FileHandle(fh))
}

fn get_attr<'a>(arg: &wire::GetattrIn) -> Operation<'a> {
    Operation::GetAttr { handle: handle_if(arg.getattr_flags & wire::GETATTR_FH, arg.fh) }
}

fn statx<'a>(arg: &wire::StatxIn) -> Operation<'a> {
    Operation::Statx {
        handle: handle_if(arg.getattr_flags & wire::GETATTR_FH, arg.fh),
        flags: arg.sx_flags,
        mask: arg.sx_mask,
    }
}

fn make_node<'a>(arg: &wire::MknodIn, name: &'a [u8]) -> Operation<'a> {
    Operation::MkNod { name, mode: arg.mode, rdev: arg.rdev, umask: arg.umask }
}

fn make_dir<'a>(arg: &wire::MkdirIn, name: &'a [u8]) -> Operation<'a> {
    Operation::MkDir { name, mode: arg.mode, umask: arg.umask }
}

fn link<'a>(arg: &wire::LinkIn, name: &'a [u8]) -> Operation<'a> {
    Operation::Link { target: NodeId(arg.oldnodeid), name }
}

fn get_xattr<'a>(arg: &wire::GetxattrIn, name: &'a [u8]) -> Operation<'a> {
    Operation::GetXattr { name, size: arg.size }
}

fn flush<'a>(arg: &wire::FlushIn) -> Operation<'a> {
    Operation::Flush { handle: FileHandle(arg.fh), lock_owner: LockOwner(arg.lock_owner) }
}

fn bmap<'a>(arg: &wire::BmapIn) -> Operation<'a> {
    Operation::Bmap { block: arg.block, block_size: arg.blocksize }
}

fn lseek<'a>(arg: &wire::LseekIn) -> Operation<'a> {
    Operation::Lseek { handle: FileHandle(arg.fh), offset: arg.offset, whence: arg.whence }
}

fn fallocate(arg: &wire::FallocateIn) -> Fallocate {
    Fallocate { handle: FileHandle(arg.fh), offset: arg.offset, length: arg.length, mode: arg.mode }
}

fn ioctl<'a>(arg: &wire::IoctlIn, body: &mut Body<'a>) -> Result<Ioctl<'a>, Malformed> {
    Ok(Ioctl {
        handle: FileHandle(arg.fh),
        command: arg.cmd,
        data: body.data(arg.in_size)?,
        out_size: arg.out_size,
    })
}

fn forgets<'a>(body: &mut Body<'a>) -> Result<Forgets<'a>, Malformed> {
    let count = body.argument::<wire::BatchForgetIn>()?.count as usize;
    let (nodes, rest) = body.all().as_chunks();
    if nodes.len() != count || !rest.is_empty() {
        return Err(Malformed::Count("count"));
    }
    Ok(Forgets(nodes))
}

fn set_attr(arg: &wire::SetattrIn) -> SetAttr {
    let has = |flag| arg.valid & flag != 0;
    let time = |set, now, seconds, nanoseconds| {
        has(set)
            .then(|| if has(now) { SetTime::Now } else { SetTime::At(at(seconds, nanoseconds)) })
    };
    SetAttr {
        handle: has(wire::FATTR_FH).then_some(FileHandle(arg.fh)),
        mode: has(wire::FATTR_MODE).then_some(arg.mode),
        uid: has(wire::FATTR_UID).then_some(arg.uid),
        gid: has(wire::FATTR_GID).then_some(arg.gid),
        size: has(wire::FATTR_SIZE).then_some(arg.size),
        atime: time(wire::FATTR_ATIME, wire::FATTR_ATIME_NOW, arg.atime, arg.atimensec),
        mtime: time(wire::FATTR_MTIME, wire::FATTR_MTIME_NOW, arg.mtime, arg.mtimensec),
        ctime: has(wire::FATTR_CTIME).then(|| at(arg.ctime, arg.ctimensec)),
        lock_owner: has(wire::FATTR_LOCKOWNER).then_some(LockOwner(arg.lock_owner)),
        kill_suid_sgid: has(wire::FATTR_KILL_SUIDGID),
    }
}

/// Seconds are sent as unsigned but are signed. Nanoseconds are clamped, so that a handler always
/// sees a valid time.
fn at(seconds: u64, nanoseconds: u32) -> Timestamp {
    Timestamp { seconds: seconds.cast_signed(), nanoseconds: nanoseconds.min(999_999_999) }
}

fn rename<'a>(body: &mut Body<'a>) -> Result<Rename<'a>, Malformed> {
    let arg: wire::RenameIn = body.argument()?;
    renamed(arg.newdir, 0, body)
}

fn rename_with_flags<'a>(body: &mut Body<'a>) -> Result<Rename<'a>, Malformed> {
    let arg: wire::Rename2In = body.argument()?;
    renamed(arg.newdir, arg.flags, body)
}

fn renamed<'a>(new_parent: u64, flags: u32, body: &mut Body<'a>) -> Result<Rename<'a>, Malformed> {
    let name = body.name()?;
    let new_name = body.name()?;
    Ok(Rename { name, new_parent: NodeId(new_parent), new_name, flags })
}

fn open(arg: &wire::OpenIn) -> Open {
    Open { flags: arg.flags, kill_suid_sgid: arg.open_flags & wire::OPEN_KILL_SUIDGID != 0 }
}

fn create(arg: &wire::CreateIn) -> Create {
    Create {
        flags: arg.flags,
        mode: arg.mode,
        umask: arg.umask,
        kill_suid_sgid: arg.open_flags & wire::OPEN_KILL_SUIDGID != 0,
    }
}

fn read(arg: &wire::ReadIn) -> Read {
    Read {
        handle: FileHandle(arg.fh),
        offset: arg.offset,
        size: arg.size,
        flags: arg.flags,
        lock_owner: (arg.read_flags & wire::READ_LOCKOWNER != 0)
            .then_some(LockOwner(arg.lock_owner)),
    }
}

fn write<'a>(arg: &wire::WriteIn, body: &mut Body<'a>) -> Result<Write<'a>, Malformed> {
    let has = |flag| arg.write_flags & flag != 0;
    Ok(Write {
        handle: FileHandle(arg.fh),
        offset: arg.offset,
        data: body.data(arg.size)?,
        flags: arg.flags,
        from_cache: has(wire::WRITE_CACHE),
        kill_suid_sgid: has(wire::WRITE_KILL_SUIDGID),
        lock_owner: has(wire::WRITE_LOCKOWNER).then_some(LockOwner(arg.lock_owner)),
    })
}

fn release(arg: &wire::ReleaseIn) -> Release {
    Release {
        handle: FileHandle(arg.fh),
        flags: arg.flags,
        flush: arg.release_flags & wire::RELEASE_FLUSH != 0,
        flock_unlock: arg.release_flags & wire::RELEASE_FLOCK_UNLOCK != 0,
        lock_owner: LockOwner(arg.lock_owner),
    }
}

fn fsync(arg: &wire::FsyncIn) -> (FileHandle, bool) {
    (FileHandle(arg.fh), arg.fsync_flags & wire::FSYNC_FDATASYNC != 0)
}

fn set_xattr<'a>(body: &mut Body<'a>, dialect: Dialect) -> Result<SetXattr<'a>, Malformed> {
    let (size, flags, own_flags) = if dialect.setxattr_ext {
        let arg: wire::SetxattrIn = body.argument()?;
        (arg.size, arg.flags, arg.setxattr_flags)
    } else {
        let arg: wire::SetxattrInCompat = body.argument()?;
        (arg.size, arg.flags, 0)
    };
    let name = body.xattr_name()?;
    let value = body.data(size)?;
    Ok(SetXattr { name, value, flags, kill_sgid: own_flags & wire::SETXATTR_ACL_KILL_SGID != 0 })
}

fn copy(arg: &wire::CopyFileRangeIn, wide: bool) -> CopyFileRange {
    CopyFileRange {
        handle_in: FileHandle(arg.fh_in),
        offset_in: arg.off_in,
        node_out: NodeId(arg.nodeid_out),
        handle_out: FileHandle(arg.fh_out),
        offset_out: arg.off_out,
        // The narrow reply has 32 bits, which older kernels ignore when they choose the length.
        length: if wide { arg.len } else { arg.len.min(u32::MAX.into()) },
        flags: arg.flags,
        wide,
    }
}
