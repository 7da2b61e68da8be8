//! Randomness that is the same on every machine and for every file system.

/// A xorshift* generator: small, fast, and good enough for choosing files.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator with this seed.
    pub fn new(seed: u64) -> Random {
        // A finalizer, so that neighbouring seeds give unrelated streams. The state is never zero.
        let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Random { state: (z ^ (z >> 31)) | 1 }
    }

    pub fn number(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `n`, which is not zero.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(n)) >> 64) as u64
    }

    /// An index into a non-empty slice.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A fraction: at least 0, less than 1.
    pub fn fraction(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }
}

/// Log-normal file sizes, as found in studies of real file systems.
#[derive(Clone, Copy, Debug)]
pub struct LogNormal {
    median: f64,
    sigma: f64,
    max: u64,
}

impl LogNormal {
    /// Sizes with this median and mean in bytes, cut off at `max`.
    pub fn new(median: f64, mean: f64, max: u64) -> LogNormal {
        // mean = median · exp(σ²/2)
        LogNormal { median, sigma: (2.0 * (mean / median).ln()).sqrt(), max }
    }

    /// The sizes of the aged tree: median 5 KB, mean 28 KB.
    pub fn churn() -> LogNormal {
        LogNormal::new(5e3, 28e3, 8 << 20)
    }

    /// The sizes of a source tree: median 4 KB, mean 12 KB.
    pub fn sources() -> LogNormal {
        LogNormal::new(4e3, 12e3, 1 << 20)
    }

    /// A random size, at least one byte.
    pub fn sample(&self, random: &mut Random) -> u64 {
        let (u, v) = (1.0 - random.fraction(), random.fraction());
        let normal = (-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos();
        ((self.median * (self.sigma * normal).exp()) as u64).clamp(1, self.max)
    }
}
