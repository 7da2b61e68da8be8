//! Takes values from the bytes of a fuzzer.

/// The unread part of an input. Zeros follow its end.
pub struct Input<'a>(&'a [u8]);

/// Numbers that provoke overflows.
const INTERESTING: [u64; 12] = [
    0,
    1,
    2,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    /// Whether all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `len` bytes, or fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// The next number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let bytes = self.bytes(4);
        let number = bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
        number % limit
    }

    /// Bytes for a patch: one, or a number of 2, 4 or 8 bytes that provokes overflows, or up to 15 bytes of
    /// the input.
    pub fn patch(&mut self) -> Vec<u8> {
        let number = |input: &mut Input<'_>, len: usize| {
            let number = INTERESTING[input.below(INTERESTING.len())];
            let near = number.wrapping_add_signed(i64::from(input.byte() as i8) / 32);
            near.to_le_bytes()[..len].to_vec()
        };
        match self.byte() % 8 {
            0 => number(self, 2),
            1 => number(self, 4),
            2 => number(self, 8),
            3 => {
                let len = usize::from(self.byte() % 16);
                self.bytes(len).to_vec()
            }
            _ => vec![self.byte()],
        }
    }

    /// Applies up to eight patches to `bytes`.
    pub fn damage(&mut self, bytes: &mut [u8]) {
        for _ in 0..8 {
            if self.is_empty() {
                return;
            }
            let at = self.below(bytes.len());
            let patch = self.patch();
            bytes[at..].iter_mut().zip(patch).for_each(|(byte, new)| *byte = new);
        }
    }
}
