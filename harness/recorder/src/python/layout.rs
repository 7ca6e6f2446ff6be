//! Where CPython keeps what a walk needs: offsets of fields, a set for each minor version.
//!
//! 3.10 to 3.12 are tables, taken from the headers of these versions (`Include/internal/pycore_frame.h`,
//! `Include/cpython/code.h`, `pystate.h`, `unicodeobject.h`) for 64-bit release builds; the layout of a minor version does
//! not change between its patch releases. From 3.13 on the interpreter publishes its own offsets
//! (`_Py_DebugOffsets`, the first thing in `_PyRuntime`). What is published differs from version to version, so a version
//! that is not listed is not read.

use super::lines::LineTable;

/// Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// `_PyRuntime`: the thread state that finalises the interpreter.
    pub(super) finalizing: usize,
    /// `PyInterpreterState`: the newest thread state.
    pub(super) threads_head: usize,
    /// `PyThreadState`: the next older one.
    pub(super) thread_next: usize,
    /// `PyThreadState`: the kernel's thread id (an unsigned long), since 3.11.
    pub(super) thread_native_id: Option<usize>,
    /// `PyThreadState`: the innermost frame, or what points to it.
    pub(super) thread_frame: usize,
    /// 3.11, 3.12: the thread state points to a `_PyCFrame`, and this is the innermost frame there.
    pub(super) cframe_frame: Option<usize>,
    /// Frame: the next outer one.
    pub(super) frame_previous: usize,
    /// Frame: the code object; since 3.14 with flags in the lowest bits.
    pub(super) frame_code: usize,
    /// Frame: where in the code.
    pub(super) frame_instruction: usize,
    /// Whether that is an address in the bytecode; in 3.10 it is an ordinal (an `int`).
    pub(super) instruction_is_address: bool,
    /// Frame: what owns it (a byte); [`NO_CODE`] and more are frames of the interpreter's own, without Python code.
    pub(super) frame_owner: Option<usize>,
    /// Frame of a free-threaded build: which copy of the bytecode runs (an `int`).
    pub(super) frame_copy: Option<usize>,
    /// Code object: the file.
    pub(super) code_file: usize,
    /// Code object: the qualified name, in 3.10 the name.
    pub(super) code_name: usize,
    /// Code object: the line table.
    pub(super) code_lines: usize,
    /// Code object: the first line (an `int`).
    pub(super) code_first_line: usize,
    /// Code object: a number that no other one has (an `int`; 0 once they are used up), since 3.12.
    pub(super) code_version: Option<usize>,
    /// Code object: the first instruction.
    pub(super) code_start: usize,
    /// Code object of a free-threaded build: the copies of the bytecode, one a thread.
    pub(super) code_copies: Option<usize>,
    /// Object: the type.
    pub(super) object_type: usize,
    /// Type: its flags.
    pub(super) type_flags: usize,
    /// `bytes`: the length.
    pub(super) bytes_length: usize,
    /// `bytes`: the data.
    pub(super) bytes_data: usize,
    /// `str`: the length in code points.
    pub(super) text_length: usize,
    /// `str`: how it is stored.
    pub(super) text_state: usize,
    /// `str`: the lowest bit of the size of a code point there.
    pub(super) text_kind_shift: u32,
    /// `str`: the data of one that is ASCII.
    pub(super) text_ascii_data: usize,
    /// `str`: the data of one that is not; the pointer to the data of one of a subclass.
    pub(super) text_data: usize,
    /// The format of the line table.
    pub(super) line_table: LineTable,
}

/// The first value of [`Layout::frame_owner`] that stands for a frame without Python code: `FRAME_OWNED_BY_CSTACK` in 3.12
/// and 3.13, `FRAME_OWNED_BY_INTERPRETER` since 3.14.
pub(super) const NO_CODE: u8 = 3;

/// The lowest bits of [`Layout::frame_code`], which are not part of the address.
pub(super) const CODE_TAG: usize = 0b11;

/// Why there is no layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoLayout {
    /// Older than 3.10.
    TooOld,
    /// Newer than what is known here, or before its release.
    Unknown,
    /// What the interpreter publishes contradicts its version or itself.
    Contradiction,
}

/// Bytes from the beginning of `_PyRuntime` that [`Layout::published`] needs.
pub(super) const PUBLISHED_SIZE: usize = 760;

impl Layout {
    /// The table for a version (`PY_VERSION_HEX`); `None` for one that publishes its offsets.
    pub(super) fn table(version: u32) -> Option<Result<Self, NoLayout>> {
        if version >> 24 != 3 {
            return Some(Err(if version >> 24 < 3 { NoLayout::TooOld } else { NoLayout::Unknown }));
        }
        match version >> 16 & 0xff {
            ..10 => Some(Err(NoLayout::TooOld)),
            10 => Some(Ok(CPYTHON_3_10)),
            11 => Some(Ok(CPYTHON_3_11)),
            12 => Some(Ok(CPYTHON_3_12)),
            _ => None,
        }
    }

    /// The layout that a version since 3.13 publishes in the first bytes of `_PyRuntime`.
    pub(super) fn published(version: u32, runtime: &[u8]) -> Result<Self, NoLayout> {
        // The fields moved during the alphas and betas of each version.
        const RELEASE_CANDIDATE: u32 = 0xc0;
        let at = match version >> 16 & 0xff {
            _ if version & 0xff < RELEASE_CANDIDATE => return Err(NoLayout::Unknown),
            13 => PUBLISHED_3_13,
            14 => PUBLISHED_3_14,
            15 => PUBLISHED_3_15,
            _ => return Err(NoLayout::Unknown),
        };
        let word = |offset: usize| {
            let bytes = runtime.get(offset..offset + 8).and_then(|b| b.try_into().ok());
            bytes.map(u64::from_ne_bytes).ok_or(NoLayout::Contradiction)
        };
        if runtime.get(..8) != Some(b"xdebugpy".as_slice()) || word(8)? != u64::from(version) || word(16)? > 1 {
            return Err(NoLayout::Contradiction);
        }
        let free_threaded = word(16)? == 1;
        // No structure is larger than this; most of an interpreter's state is.
        let offset = |at: usize, align: usize| {
            let value = usize::try_from(word(at)?).unwrap_or(usize::MAX);
            if value < 0x10_0000 && value % align == 0 { Ok(value) } else { Err(NoLayout::Contradiction) }
        };
        let pointer = |at| offset(at, align_of::<usize>());
        let copy = |at: Option<usize>, align| at.filter(|_| free_threaded).map(|at| offset(at, align)).transpose();
        let (locals, ascii_size) = (pointer(at.code_locals)?, pointer(at.text_ascii_size)?);
        Ok(Self {
            finalizing: pointer(at.finalizing)?,
            threads_head: pointer(at.threads_head)?,
            thread_next: pointer(at.thread_next)?,
            thread_native_id: Some(pointer(at.thread_native_id)?),
            thread_frame: pointer(at.thread_frame)?,
            cframe_frame: None,
            frame_previous: pointer(at.frame_previous)?,
            frame_code: pointer(at.frame_code)?,
            frame_instruction: pointer(at.frame_instruction)?,
            instruction_is_address: true,
            frame_owner: Some(offset(at.frame_owner, 1)?),
            frame_copy: copy(at.frame_copy, align_of::<i32>())?,
            code_file: pointer(at.code_file)?,
            code_name: pointer(at.code_name)?,
            code_lines: pointer(at.code_lines)?,
            code_first_line: offset(at.code_first_line, align_of::<i32>())?,
            // Not published; in the three versions it is the `uint32_t` before `co_localsplusnames`.
            code_version: Some(locals.checked_sub(size_of::<u32>()).ok_or(NoLayout::Contradiction)?),
            code_start: offset(at.code_start, 2)?,
            code_copies: copy(at.code_copies, align_of::<usize>())?,
            object_type: pointer(at.object_type)?,
            type_flags: pointer(at.type_flags)?,
            bytes_length: pointer(at.bytes_length)?,
            bytes_data: offset(at.bytes_data, 1)?,
            text_length: pointer(at.text_length)?,
            text_state: offset(at.text_state, align_of::<i32>())?,
            // A free-threaded 3.14 has a whole byte for the state of interning before it.
            text_kind_shift: if free_threaded { 8 } else { 2 },
            text_ascii_data: ascii_size,
            text_data: ascii_size + 2 * size_of::<usize>(),
            line_table: LineTable::Locations,
        })
    }
}

const CPYTHON_3_10: Layout = Layout {
    finalizing: 16,
    threads_head: 8,
    thread_next: 8,
    thread_native_id: None,
    thread_frame: 24,
    cframe_frame: None,
    frame_previous: 24,
    frame_code: 32,
    frame_instruction: 96,
    instruction_is_address: false,
    frame_owner: None,
    frame_copy: None,
    code_file: 104,
    code_name: 112,
    code_lines: 120,
    code_first_line: 40,
    code_version: None,
    code_start: 0,
    code_copies: None,
    object_type: 8,
    type_flags: 168,
    bytes_length: 16,
    bytes_data: 32,
    text_length: 16,
    text_state: 32,
    text_kind_shift: 2,
    text_ascii_data: 48,
    text_data: 72,
    line_table: LineTable::Pairs,
};

const CPYTHON_3_11: Layout = Layout {
    finalizing: 24,
    threads_head: 16,
    thread_native_id: Some(160),
    thread_frame: 56,
    cframe_frame: Some(8),
    frame_previous: 48,
    frame_code: 32,
    frame_instruction: 56,
    instruction_is_address: true,
    // 0 to 2: it has no frames of its own.
    frame_owner: None,
    code_file: 112,
    code_name: 128,
    code_lines: 136,
    code_first_line: 72,
    code_start: 184,
    line_table: LineTable::Locations,
    ..CPYTHON_3_10
};

const CPYTHON_3_12: Layout = Layout {
    threads_head: 72,
    thread_native_id: Some(144),
    cframe_frame: Some(0),
    frame_previous: 8,
    frame_code: 0,
    frame_owner: Some(70),
    code_first_line: 68,
    code_version: Some(92),
    code_start: 192,
    text_ascii_data: 40,
    text_data: 56,
    ..CPYTHON_3_11
};

/// Where in `_Py_DebugOffsets` an offset is: offsets of offsets.
struct Published {
    finalizing: usize,
    threads_head: usize,
    thread_next: usize,
    thread_frame: usize,
    thread_native_id: usize,
    frame_previous: usize,
    frame_code: usize,
    frame_instruction: usize,
    frame_owner: usize,
    frame_copy: Option<usize>,
    code_file: usize,
    code_name: usize,
    code_lines: usize,
    code_first_line: usize,
    code_locals: usize,
    code_start: usize,
    code_copies: Option<usize>,
    object_type: usize,
    type_flags: usize,
    bytes_length: usize,
    bytes_data: usize,
    text_state: usize,
    text_length: usize,
    text_ascii_size: usize,
}

const PUBLISHED_3_13: Published = Published {
    finalizing: 32,
    threads_head: 72,
    thread_next: 168,
    thread_frame: 184,
    thread_native_id: 200,
    frame_previous: 232,
    frame_code: 240,
    frame_instruction: 248,
    frame_owner: 264,
    frame_copy: None,
    code_file: 280,
    code_name: 296,
    code_lines: 304,
    code_first_line: 312,
    code_locals: 328,
    code_start: 344,
    code_copies: None,
    object_type: 360,
    type_flags: 392,
    bytes_length: 520,
    bytes_data: 528,
    text_state: 544,
    text_length: 552,
    text_ascii_size: 560,
};

const PUBLISHED_3_14: Published = Published {
    finalizing: 32,
    threads_head: 72,
    thread_next: 192,
    thread_frame: 208,
    thread_native_id: 224,
    frame_previous: 256,
    frame_code: 264,
    frame_instruction: 272,
    frame_owner: 288,
    frame_copy: Some(304),
    code_file: 320,
    code_name: 336,
    code_lines: 344,
    code_first_line: 352,
    code_locals: 368,
    code_start: 384,
    code_copies: Some(392),
    object_type: 408,
    type_flags: 440,
    bytes_length: 600,
    bytes_data: 608,
    text_state: 624,
    text_length: 632,
    text_ascii_size: 640,
};

const PUBLISHED_3_15: Published = Published {
    thread_native_id: 248,
    frame_previous: 320,
    frame_code: 328,
    frame_instruction: 336,
    frame_owner: 352,
    frame_copy: Some(368),
    code_file: 384,
    code_name: 400,
    code_lines: 408,
    code_first_line: 416,
    code_locals: 432,
    code_start: 448,
    code_copies: Some(456),
    object_type: 472,
    type_flags: 504,
    bytes_length: 696,
    bytes_data: 704,
    text_state: 720,
    text_length: 728,
    text_ascii_size: 736,
    ..PUBLISHED_3_14
};
