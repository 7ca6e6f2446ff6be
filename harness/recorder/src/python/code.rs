//! Copies of what a code object says of itself.

use super::layout::Layout;
use super::memory::Memory;

/// The types that objects are checked against: addresses of what the interpreter exports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Types {
    /// `PyCode_Type`
    pub(super) code: usize,
    /// `PyUnicode_Type`
    pub(super) text: usize,
    /// `PyBytes_Type`
    pub(super) bytes: usize,
}

/// How memory contradicts the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mismatch {
    /// An address cannot be read.
    Address = 1,
    /// What should be a code object is none.
    NotCode,
    /// What should be a string is none.
    NotText,
    /// What should be a byte string is none.
    NotBytes,
    /// A length is out of all bounds.
    Length,
}

impl Mismatch {
    /// All of them.
    pub(super) const ALL: [Self; 5] = [Self::Address, Self::NotCode, Self::NotText, Self::NotBytes, Self::Length];

    /// A part of a sentence.
    pub(super) fn description(self) -> &'static str {
        match self {
            Self::Address => "an address cannot be read",
            Self::NotCode => "a frame has something else than a code object",
            Self::NotText => "a name is no string",
            Self::NotBytes => "a line table is no byte string",
            Self::Length => "a length is out of bounds",
        }
    }
}

/// A copy of a code object, of what names its lines.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Code {
    /// The file, at most [`TEXT`] characters.
    pub(super) file: Box<str>,
    /// The qualified name (3.10: the name), at most [`TEXT`] characters.
    pub(super) name: Box<str>,
    /// The first line.
    pub(super) first_line: i32,
    /// The line table; empty where it is larger than [`LINES`].
    pub(super) lines: Box<[u8]>,
}

impl Code {
    /// Whether it is the interpreter's own, between a class that is called and its `__init__` (`_Py_InitCleanup`, since
    /// 3.13, when the call is specialised). Its file has no name of its own; `sys._getframe` does not show it either.
    pub(super) fn is_trampoline(&self) -> bool {
        &*self.file == "__init__" && &*self.name == "__init__"
    }
}

/// Characters of a name that are kept.
const TEXT: usize = 4096;

/// Bytes of a line table that are kept: a function of some 100,000 lines.
const LINES: usize = 1 << 20;

/// No object has this many elements.
pub(super) const MANY: usize = 1 << 40;

/// `Py_TPFLAGS_BYTES_SUBCLASS`, `Py_TPFLAGS_UNICODE_SUBCLASS`.
const BYTES_SUBCLASS: usize = 1 << 27;
const TEXT_SUBCLASS: usize = 1 << 28;

/// A reader of objects in a memory.
pub(super) struct Objects<'a, M> {
    /// Where they are.
    pub(super) memory: &'a M,
    /// How they are laid out.
    pub(super) layout: &'a Layout,
    /// What they can be.
    pub(super) types: &'a Types,
}

impl<M: Memory> Objects<'_, M> {
    /// The code object at this address.
    pub(super) fn code(&self, address: usize) -> Result<Code, Mismatch> {
        if self.word(address, self.layout.object_type)? != self.types.code {
            return Err(Mismatch::NotCode);
        }
        let first_line = self.memory.int(field(address, self.layout.code_first_line)?).ok_or(Mismatch::Address)?;
        Ok(Code {
            file: self.text(self.word(address, self.layout.code_file)?)?,
            name: self.text(self.word(address, self.layout.code_name)?)?,
            first_line,
            lines: self.bytes(self.word(address, self.layout.code_lines)?)?,
        })
    }

    /// The string at this address. Of a character outside of Unicode (a byte of a file name that is not UTF-8) a
    /// replacement character is left.
    fn text(&self, address: usize) -> Result<Box<str>, Mismatch> {
        self.check(address, self.types.text, TEXT_SUBCLASS, Mismatch::NotText)?;
        let length = self.word(address, self.layout.text_length)?;
        let state = self.memory.int(field(address, self.layout.text_state)?).ok_or(Mismatch::Address)?;
        let state = state.cast_unsigned() >> self.layout.text_kind_shift;
        let (kind, compact, ascii) = ((state & 7) as usize, state >> 3 & 1 == 1, state >> 4 & 1 == 1);
        if !matches!(kind, 1 | 2 | 4) || (ascii && kind != 1) {
            return Err(Mismatch::NotText);
        }
        if length >= MANY {
            return Err(Mismatch::Length);
        }
        let data = match (compact, ascii) {
            (true, true) => field(address, self.layout.text_ascii_data)?,
            (true, false) => field(address, self.layout.text_data)?,
            // Of a subclass: the data are elsewhere.
            (false, _) => self.word(address, self.layout.text_data)?,
        };
        let mut raw = vec![0; length.min(TEXT) * kind];
        self.memory.bytes(data, &mut raw).ok_or(Mismatch::Address)?;
        let text: String = match kind {
            1 => raw.iter().map(|b| char::from(*b)).collect(),
            2 => raw.chunks_exact(2).map(|c| scalar(u32::from(u16::from_ne_bytes([c[0], c[1]])))).collect(),
            _ => raw.chunks_exact(4).map(|c| scalar(u32::from_ne_bytes([c[0], c[1], c[2], c[3]]))).collect(),
        };
        Ok(text.into())
    }

    fn bytes(&self, address: usize) -> Result<Box<[u8]>, Mismatch> {
        self.check(address, self.types.bytes, BYTES_SUBCLASS, Mismatch::NotBytes)?;
        let length = self.word(address, self.layout.bytes_length)?;
        if length >= MANY {
            return Err(Mismatch::Length);
        }
        let mut bytes = vec![0; if length <= LINES { length } else { 0 }];
        self.memory.bytes(field(address, self.layout.bytes_data)?, &mut bytes).ok_or(Mismatch::Address)?;
        Ok(bytes.into())
    }

    /// Whether the object is of this type or of a subclass.
    fn check(&self, address: usize, exact: usize, subclass: usize, otherwise: Mismatch) -> Result<(), Mismatch> {
        let of = self.word(address, self.layout.object_type)?;
        if of == exact || self.word(of, self.layout.type_flags)? & subclass != 0 { Ok(()) } else { Err(otherwise) }
    }

    fn word(&self, address: usize, offset: usize) -> Result<usize, Mismatch> {
        self.memory.word(field(address, offset)?).ok_or(Mismatch::Address)
    }
}

fn field(address: usize, offset: usize) -> Result<usize, Mismatch> {
    if address == 0 { Err(Mismatch::Address) } else { address.checked_add(offset).ok_or(Mismatch::Address) }
}

fn scalar(point: u32) -> char {
    char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER)
}
