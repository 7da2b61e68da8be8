use super::*;

fn problem(code: &str, place: &str, message: &str) -> CheckProblem {
    let (code, place, message) = (code.to_owned(), place.to_owned(), message.to_owned());
    CheckProblem { code, title: String::new(), place, message, fixed: false, repairable: true }
}

fn loss(inode: u64, path: &str) -> CheckLoss {
    CheckLoss { what: String::from("lost"), path: path.to_owned(), inode }
}

/// Regression: after 160 KiB of damage a check printed 292 lines, 200 of which named one lost inode each.
#[test]
fn equal_findings_share_a_line_and_consecutive_numbers_a_range() {
    let mut list: Vec<CheckLoss> =
        (18..=182).filter(|inode| *inode != 159).map(|inode| loss(inode, "")).collect();
    list.extend([loss(7, "/kept"), loss(201, "/dir/"), loss(200, "/dir/")]);
    list.push(loss(9, "/other/"));
    assert_eq!(
        losses(&list),
        [
            "lost: inodes 18-158, 160-182 (names unknown)",
            "lost: /kept (inode 7)",
            "lost: inodes 200, 201 (names unknown, files in /dir/)",
            "lost: inode 9 (name unknown, a file in /other/)",
        ]
    );
    let list = [
        problem("CF0201", "inode 16 sector 0", "checksum mismatch"),
        problem("CF0306", "inode 30", "found 1 block"),
        problem("CF0201", "inode 16 sector 1", "checksum mismatch"),
        problem("CF0201", "inode 16 sector 2", "checksum mismatch"),
        problem("CF0301", "root sector 4 entry 9", "no inode"),
        problem("CF0301", "root sector 4 entry 3", "no inode"),
        problem("CF0502", "cylinder group 4", "bitmap checksum mismatch"),
        problem("CF0101", "volume", "no superblock"),
    ];
    assert_eq!(
        problems(&list),
        [
            "CF0201 inode 16 sectors 0-2: checksum mismatch",
            "CF0306 inode 30: found 1 block",
            "CF0301 root sector 4 entries 3, 9: no inode",
            "CF0502 cylinder group 4: bitmap checksum mismatch",
            "CF0101 volume: no superblock",
        ]
    );
}

/// Regression: a damaged object was said to be a failing device.
#[test]
fn sectors_of_a_store_are_not_those_of_a_device() {
    assert_eq!(unreadable(true, 1), "1 sector cannot be read from the store");
    let of_device = "2 sectors of the device cannot be read; copy what you need to another device";
    assert_eq!(unreadable(false, 2), of_device);
}

/// Regression: the report said "5 files contents lost or in doubt".
#[test]
fn losses_are_counted_in_words() {
    for (what, count, expected) in [
        ("lost", 1, "1 file lost"),
        ("contents lost or in doubt", 5, "contents of 5 files lost or in doubt"),
        ("attributes lost", 1, "attributes of 1 file lost"),
        ("moved to lost+found", 2, "2 files moved to lost+found"),
    ] {
        assert_eq!(loss_count(what, count), expected);
    }
}
