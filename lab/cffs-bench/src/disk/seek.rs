//! The seek curve.
//!
//! Data sheets give three figures: the seek to the next cylinder, the average over random pairs, and the full
//! stroke. The curve `a + b·√d + c·d` goes through them, with the average at a third of the stroke, which is
//! the mean distance of random pairs. It follows measured drives well: the root models the accelerating arm
//! of short seeks, the line the coasting arm of long ones.

use super::Nanos;

/// Seek time as a function of distance.
#[derive(Clone, Copy, Debug)]
pub struct SeekCurve {
    constant: f64,
    root: f64,
    linear: f64,
    /// Cylinders of the real drive for each cylinder of the modelled volume.
    scale: f64,
}

impl SeekCurve {
    /// The curve of a drive with `cylinders`, through its three figures in milliseconds.
    ///
    /// # Panics
    /// If the figures do not describe a rising curve. They come from a profile, not from data.
    pub fn through(cylinders: u32, single_ms: f64, average_ms: f64, full_ms: f64) -> SeekCurve {
        assert!(cylinders >= 4 && single_ms < average_ms && average_ms < full_ms);
        let (third, full) = (f64::from(cylinders) / 3.0, f64::from(cylinders - 1));
        // Subtracting the equation of the single cylinder leaves two equations in `root` and `linear`.
        let (r1, l1, y1) = (third.sqrt() - 1.0, third - 1.0, average_ms - single_ms);
        let (r2, l2, y2) = (full.sqrt() - 1.0, full - 1.0, full_ms - single_ms);
        let determinant = r1 * l2 - r2 * l1;
        let root = (y1 * l2 - y2 * l1) / determinant;
        let linear = (r1 * y2 - r2 * y1) / determinant;
        assert!(root >= 0.0 && linear >= 0.0, "these figures give a curve that falls");
        SeekCurve { constant: single_ms - root - linear, root, linear, scale: 1.0 }
    }

    /// The same curve for a model in which one cylinder stands for `scale` of the real drive.
    pub fn scaled(self, scale: f64) -> SeekCurve {
        SeekCurve { scale, ..self }
    }

    /// The time to move the arm over `distance` cylinders; zero for none.
    pub fn time(&self, distance: u32) -> Nanos {
        if distance == 0 {
            return Nanos::ZERO;
        }
        // The neighbouring cylinder stays the neighbour at any scale of the volume.
        let real = f64::from(distance - 1) * self.scale + 1.0;
        Nanos::from_ms(self.constant + self.root * real.sqrt() + self.linear * real)
    }
}
