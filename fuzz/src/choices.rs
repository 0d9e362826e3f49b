//! An input as a sequence of choices, from which a target makes what it tests.
//!
//! Guarantees: an input that is used up continues with zeros, so that every input makes something.

/// The unread bytes of an input.
pub(crate) struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Choices<'a> {
        Choices(data)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, remaining) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = remaining;
        taken
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub(crate) fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number below `bound`, which is at most 65,536.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let number = match bound <= 256 {
            true => usize::from(self.byte()),
            false => usize::from(u16::from_le_bytes(self.array())),
        };
        number % bound
    }

    /// Mostly a number close to `expected`, by one byte: 0 is that number. Any other takes nine bytes.
    pub(crate) fn near(&mut self, expected: u64) -> u64 {
        match self.byte() {
            u8::MAX => u64::from_le_bytes(self.array()),
            byte => {
                let distance = i64::from(byte >> 1);
                expected.wrapping_add_signed(if byte & 1 == 1 { -distance } else { distance })
            }
        }
    }

    /// A text with its length in a byte.
    pub(crate) fn text(&mut self) -> String {
        let bytes = usize::from(self.byte());
        String::from_utf8_lossy(self.take(bytes)).into_owned()
    }
}
