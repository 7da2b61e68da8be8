//! Every problem that fsck can find: its code, meaning and repair.
//!
//! Offers the one table that the checks, the report, the command line and `docs/FSCK.md` share
//! (a test compares the last with it). Codes are stable: a code is never given another meaning.
//! The first two digits are the pass that finds it.

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Only what can be recomputed is wrong: preening repairs it.
    Derived,
    /// Primary metadata contradicts itself, and a repair loses no user data.
    Damage,
    /// User data is lost or in doubt.
    Loss,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The problem.
    pub code: Code,
    /// The code as it is printed, such as `CF0101`.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// One line.
    pub title: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// The repair.
    pub repair: &'static str,
}

macro_rules! problems {
    ($($code:ident $id:literal $severity:ident
        $title:literal $meaning:literal $repair:literal;)*) => {
        /// A kind of problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $title] $code,)*
        }

        /// All problems, in the order of their codes.
        pub static PROBLEMS: &[Description] = &[
            $(Description {
                code: Code::$code,
                id: $id,
                severity: Severity::$severity,
                title: $title,
                meaning: $meaning,
                repair: $repair,
            },)*
        ];
    };
}

problems! {
    Unrepaired "CF0001" Loss
        "repair did not converge"
        "Each repair revealed new damage, more often than a single accident explains."
        "None. Copy the readable files and make a new volume.";
    NoSpace "CF0002" Loss
        "no space for a repair"
        "A repair needs free fragments or an inode number, and none is left."
        "The rest is repaired, and the volume stays marked as damaged: copy your files from a read-only mount.";

    SuperblockLost "CF0101" Damage
        "superblock lost"
        "The superblock in block 0 cannot be read or does not match its checksum."
        "It is rewritten from the best of its copies.";
    SuperblockCopy "CF0102" Derived
        "copy of the superblock bad"
        "A copy of the superblock is bad, or contradicts the superblock in a field that mkfs set."
        "The copy is rewritten.";
    DeviceTooSmall "CF0103" Loss
        "device smaller than the volume"
        "The superblock describes more blocks than the device has: it was cut, or copied in part."
        "Nothing. Restore the device to its size.";
    SystemArea "CF0104" Damage
        "system area lost"
        "The sector with the inodes of the root directory, the locator table and the external table is bad."
        "It is restored from a copy; blocks that the copy lacks are searched for.";
    SystemCopy "CF0105" Derived
        "copy of the system area bad"
        "A sector of a copy of the system area does not match its checksum."
        "The copy is rewritten.";
    SystemInode "CF0106" Damage
        "system inode missing or impossible"
        "The inode of the root directory, of the locator table or of the external table is missing or invalid."
        "It is made again, empty; its contents are searched for.";
    JournalHeader "CF0107" Derived
        "header of the journal bad"
        "Neither header of the journal is valid. The volume was left clean, so nothing was in the journal."
        "A new, empty journal is written.";
    JournalLost "CF0108" Loss
        "journal lost while it was in use"
        "The volume was not left clean, and its journal is lost in whole or in part: its headers, or a record that others follow, do not match their checksums, a block of it cannot be read, it is an older copy of itself or belongs to another copy of the volume, or the volume is older than its journal, or its device is lost. Changes that were reported as durable are lost, and the rest of the volume may be inconsistent."
        "None without --without-journal, which accepts the loss: -p and -y refuse, and change nothing. With it, the records before the damage are used, the volume is checked as a whole, and a new, empty journal is written; the old journal is ignored if it turns up again.";
    WritesLost "CF0109" Loss
        "acknowledged writes lost"
        "The device lost data that it had acknowledged with a flush, although it kept later data: a superblock, a part of the intent log, or writes of a checkpoint. Other losses cannot be detected."
        "The volume is made consistent in its present state; compare recent changes with a backup. Check the device before you trust it again: its write cache, its controller, or the host of a virtual disk.";

    SectorLost "CF0201" Loss
        "directory sector lost"
        "A sector of a directory cannot be read, does not match its checksum or belongs elsewhere. Its names and the inodes in it are lost."
        "The sector is emptied, or keeps its valid entries if another sector of its block is the directory's own. Lost directories are found again and go to lost+found.";
    TableSectorLost "CF0202" Loss
        "sector of the external table lost"
        "A sector of the external inode table cannot be read, does not match its checksum or belongs elsewhere. The inodes in it are lost."
        "The sector is emptied, or keeps its valid inodes if only its header is wrong. The names of lost inodes are removed; directories among them are found again and go to lost+found.";
    BadEntry "CF0203" Loss
        "impossible entry"
        "A sector is intact, but an entry or an inode in it breaks the rules of the format."
        "It is corrected as far as possible; otherwise the entry is removed.";
    NameHash "CF0204" Damage
        "wrong hash of a name"
        "An entry's hash is not that of its name, so that looking it up fails."
        "The entry is rewritten.";
    DirectorySize "CF0205" Damage
        "directory's size does not match its blocks"
        "A directory's size is not a multiple of the block size, or its blocks do not cover it."
        "The size is set from the blocks, or empty blocks fill the holes.";
    BadNumber "CF0206" Loss
        "impossible inode number"
        "An entry has the number of a system inode, or one that the locator table cannot hold."
        "The entry is removed.";
    TwoPlaces "CF0207" Damage
        "inode in two places"
        "Two entries contain the same inode, and no crash explains it."
        "The newer counts; the other name is removed.";
    NameTwice "CF0208" Damage
        "name twice in a directory"
        "Two entries of a directory have the same name, and no crash explains it."
        "The newer counts; the other entry is removed.";
    Dangling "CF0209" Loss
        "name without an inode"
        "A name refers to an inode that is not in the external inode table."
        "The name is removed.";
    ReferenceSector "CF0210" Damage
        "name refers to the wrong sector for its inode"
        "A name refers to an inode in the wrong sector of the external inode table."
        "The entry is corrected.";
    EntryType "CF0211" Damage
        "name has the wrong type"
        "The file type stored with a name is not that of the inode."
        "The entry is corrected.";
    EmbeddedForbidden "CF0212" Damage
        "inode embedded on a volume without embedding"
        "A directory contains an inode, but the volume was made to keep all inodes in the external inode table."
        "The inode moves to the external inode table.";
    ExtentRange "CF0221" Loss
        "extent outside of the data area"
        "An extent leaves the volume or its cylinder group, or covers blocks that are never allocated."
        "The extent is removed; the file has a hole there.";
    ExtentOverlap "CF0222" Damage
        "extents of a file overlap"
        "Two extents map the same part of a file."
        "The one in the inode counts, as the newer; the other loses the part.";
    ExtentBlock "CF0223" Loss
        "block of an extent tree lost"
        "A block of the tree that maps a file cannot be read, does not match its checksum or belongs elsewhere."
        "The file keeps the other extents, and has holes in place of the lost ones.";
    SharedFragments "CF0224" Loss
        "fragments used twice"
        "Two files, or two parts of one, claim the same fragments. Only one can be right."
        "A file whose checksum matches keeps them, and the others get a hole, as does a file whose checksum does not match. If no checksum decides, each gets a copy.";
    FragmentCount "CF0225" Damage
        "inode's count of fragments wrong"
        "The count in the inode is not that of its extents, extent blocks and attributes."
        "The count is corrected.";
    Contents "CF0226" Loss
        "contents do not match their checksum"
        "A file's bytes, or those of a cluster with contents of it, differ from those that were written."
        "They cannot be restored; the checksum is removed, so that the file can be read. Contents in a \
         damaged cluster become a hole, which reads as zeros, in all files that use the cluster.";
    UnexpectedSpace "CF0227" Damage
        "file has space that its type does not have"
        "A device, pipe or socket has a size or extents, or the target of a symbolic link is incomplete."
        "The space is freed; a symbolic link without target is removed.";
    Fields "CF0228" Damage
        "fields of an inode contradict each other"
        "A file that is larger than a segment has a checksum of its contents, or the recorded place of its neighbours is not on the volume."
        "The checksum is removed, or the place forgotten.";
    SymlinkTarget "CF0229" Loss
        "invalid target of a symbolic link"
        "The target of a symbolic link is empty or contains a zero byte."
        "The target is cut before the zero byte; a link without a target is removed.";
    ContentsLost "CF0230" Loss
        "contents lost with an object"
        "Contents of a file are in an object of the store that is missing or damaged."
        "None: reads of the lost part fail with EIO. The other contents are kept. Remove the file, or write the part again.";
    AttributeList "CF0231" Loss
        "list of attributes bad"
        "The list of an inode's extended attributes is malformed, or a name contains a zero byte."
        "Valid attributes before the error are kept.";
    AttributeBlock "CF0232" Loss
        "attribute block lost"
        "The block of a file's extended attributes cannot be read, does not match its checksum or belongs elsewhere."
        "The file loses those attributes.";

    LinkCount "CF0301" Damage
        "link count wrong"
        "The link count of an inode is not the count of its names."
        "The count is corrected.";
    DirectoryCounts "CF0302" Damage
        "directory's counts wrong"
        "A directory's link count is not 2 and the count of its subdirectories, or its count of entries is wrong."
        "The counts are corrected.";
    Parent "CF0303" Damage
        "parent wrong"
        "An inode does not name the directory that has its name as its parent."
        "The parent is corrected.";
    Nameless "CF0304" Damage
        "inode without a name"
        "An inode of the external table has no name in any directory."
        "It gets a name in lost+found; if its link count is 0, it is freed.";
    DirectoryNames "CF0305" Damage
        "directory with two names"
        "More than one name refers to a directory."
        "One name stays; the others are removed.";
    LostDirectory "CF0306" Damage
        "inode of a directory lost"
        "The inode of a directory is lost, but blocks with its entries exist."
        "The directory gets a new inode, and a name in lost+found. Its name, owner and permissions are lost: only root may enter it.";
    DirectoryLoop "CF0307" Damage
        "directory contains itself"
        "A name inside a directory refers to the directory itself or to one above it."
        "The name is removed.";
    LostBlocks "CF0308" Damage
        "blocks of a directory that its inode does not refer to"
        "A directory lacks sectors, and they were found in blocks that nothing refers to: its inode has the wrong number of blocks, generation or places."
        "They are returned to the directory.";

    LocatorSize "CF0401" Derived
        "locator table's size wrong"
        "The size of the locator table does not match its blocks."
        "The size is set from the blocks.";
    LocatorBlock "CF0402" Derived
        "block of the locator table bad"
        "A block of the table cannot be read, does not match its checksum or belongs elsewhere."
        "It is rewritten from the inodes that were found.";
    LocatorEntry "CF0403" Derived
        "locator table contradicts the directories"
        "Entries of the table give a wrong place for inodes, or a place for inodes that do not exist."
        "The entries are corrected.";
    Index "CF0404" Derived
        "index of a directory wrong"
        "The hash index of a directory is bad, or does not list exactly the directory's names."
        "The index is removed; the next name that is added makes a new one. After a crash, the \
         buckets that the intent log lists are corrected instead, if the index of the last \
         checkpoint still exists.";

    GroupHeader "CF0501" Derived
        "header of a cylinder group bad"
        "The header cannot be read, does not match its checksum or belongs to another group."
        "It is rewritten.";
    Bitmap "CF0502" Derived
        "free bitmap wrong"
        "The bitmap of a cylinder group shows used fragments as free, or free ones as used, or does not match its checksum."
        "It is rewritten from the extents that were found.";
    FreeCount "CF0503" Derived
        "count of free fragments wrong"
        "A cylinder group's header has a count that is not that of its bitmap."
        "The count is corrected.";
    GroupsMade "CF0504" Derived
        "cylinder group in use that was never made"
        "A file has space in a group after those that the superblock counts as made."
        "The groups are made.";
    Counters "CF0505" Derived
        "superblock's counters wrong"
        "The superblock's count of free fragments or of inodes, or its epoch, is wrong."
        "They are corrected.";
    ClusterReferences "CF0506" Derived
        "counts of references to clusters wrong"
        "A cylinder group counts more or fewer references to its clusters than extents refer to them. A count that is too low would free contents that are in use."
        "The counts are rewritten from the extents that were found.";
    QuotaAccount "CF0507" Derived
        "account of a quota wrong"
        "The account of a directory with a quota, as the volume was closed with it, is not the count of its tree."
        "With -p or -y, the tree is counted when the volume is opened for the next time.";
}

impl Code {
    /// The problem's row of the table.
    pub fn describe(self) -> &'static Description {
        &PROBLEMS[self as usize]
    }

    /// The code as it is printed, such as `CF0101`.
    pub fn id(self) -> &'static str {
        self.describe().id
    }

    /// The number in the code: 101 for `CF0101`.
    pub fn number(self) -> u16 {
        self.id().trim_start_matches("CF").parse().unwrap_or_default()
    }

    /// Whether no repair helps.
    pub fn is_final(self) -> bool {
        matches!(self, Code::NoSpace | Code::Unrepaired | Code::DeviceTooSmall | Code::ContentsLost)
    }

    /// How bad the problem is.
    pub fn severity(self) -> Severity {
        self.describe().severity
    }
}
