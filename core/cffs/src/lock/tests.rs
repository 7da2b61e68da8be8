use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

fn fails(work: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

#[test]
fn locks_are_taken_in_their_order() {
    let gate = RwLock::new(Rank::Gate, ());
    let (dir, file) = (RwLock::new(Rank::Files, 1), RwLock::new(Rank::Files, 2));
    let leaf = Mutex::new(Rank::Leaf, 3);
    let _gate = gate.read();
    let dir = dir.write();
    let file = file.write();
    assert_eq!(*dir + *file + *leaf.lock(), 6);
    drop(dir);
    assert_eq!(*leaf.lock(), 3, "locks are given back in any order");
}

#[test]
#[cfg(debug_assertions)]
fn a_lock_out_of_order_is_a_mistake_even_if_it_is_free() {
    let (epochs, gate) = (Mutex::new(Rank::Epochs, ()), RwLock::new(Rank::Gate, ()));
    let (leaf, other) = (Mutex::new(Rank::Leaf, ()), Mutex::new(Rank::Leaf, ()));
    let table = RwLock::new(Rank::Locator, ());
    {
        let _gate = gate.write();
        assert!(fails(|| drop(epochs.lock())), "epochs come before the gate");
        assert!(fails(|| drop(gate.read())), "a gate that waits for itself");
        assert!(epochs.try_lock().is_some(), "a thread that only tries makes no other wait");
    }
    {
        let _leaf = leaf.lock();
        assert!(fails(|| drop(table.read())), "nothing is taken under a leaf");
        assert!(fails(|| drop(other.lock())), "nor another leaf");
    }
    drop(epochs.lock());
}
