//! The tensor directory of a GGUF file.

use kernels::formats::Format;

use super::{cursor::Cursor, error::GgufProblem, types::TensorType};

/// The most tensors a file may have. The largest known files have a few thousand.
const MAX_TENSORS: usize = 1 << 18;

/// The most bytes of a tensor's name (GGUF specification).
const MAX_NAME_BYTES: usize = 64;

/// The most dimensions of a tensor.
const MAX_DIMS: u32 = 4;

/// The least a tensor takes in the directory: name length 8, name 1, dimension count 4, one dimension
/// 8, type 4, offset 8.
pub(crate) const MIN_TENSOR_BYTES: usize = 33;

/// A tensor in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    dims: Vec<usize>,
    tensor_type: TensorType,
    offset: u64,
    bytes: u64,
}

impl TensorInfo {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The dimensions in GGUF order: `dims()[0]` is the row length, the dimension that is contiguous in
    /// memory. One to four of them, each at least 1.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The dimensions in the usual order, row length last.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        self.dims.iter().rev().copied().collect()
    }

    /// The row length.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.dims.first().copied().unwrap_or(0)
    }

    /// The number of rows: the product of all dimensions but the row length.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.dims.iter().skip(1).product()
    }

    /// The number of values.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The type of the data, supported or not.
    #[must_use]
    pub fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    /// The block format, where the kernels support it.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        self.tensor_type.format()
    }

    /// Where the data starts: bytes from the start of the file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes of the data. For a type whose block size is unknown: what lies between its start and
    /// the next tensor, or the end of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A tensor as read, before its place is known.
struct Raw {
    entry_offset: u64,
    info: TensorInfo,
    /// `None`: the type's block size is unknown.
    bytes: Option<u64>,
}

/// The directory of tensors.
#[derive(Debug, Default)]
pub(crate) struct Tensors {
    /// In the order of the file.
    pub(crate) infos: Vec<TensorInfo>,
    /// Indices into `infos`, in the order of the names.
    sorted: Vec<u32>,
}

impl Tensors {
    /// Reads `count` entries; the data follow from the next multiple of `alignment` on.
    pub(crate) fn read(
        cursor: &mut Cursor<'_>,
        count: usize,
        alignment: u64,
        file_bytes: u64,
    ) -> Result<Self, GgufProblem> {
        if count > MAX_TENSORS {
            return Err(GgufProblem::Malformed {
                offset: 8,
                what: "the number of tensors".into(),
                found: count.to_string(),
                expected: format!("at most {MAX_TENSORS}"),
            });
        }
        let mut raws = Vec::new();
        for index in 0..count {
            raws.push(read_entry(cursor, index, alignment)?);
        }
        let data_start = (cursor.at() as u64).next_multiple_of(alignment);
        let sorted = sort_by_name(&raws)?;
        place(&mut raws, data_start, file_bytes)?;
        Ok(Self {
            infos: raws.into_iter().map(|r| r.info).collect(),
            sorted,
        })
    }

    pub(crate) fn find(&self, name: &str) -> Option<&TensorInfo> {
        let info = |i: &u32| &self.infos[*i as usize];
        let at = self
            .sorted
            .binary_search_by(|i| info(i).name.as_str().cmp(name))
            .ok()?;
        self.sorted.get(at).map(info)
    }
}

fn malformed(
    offset: usize,
    what: String,
    found: impl ToString,
    expected: impl Into<String>,
) -> GgufProblem {
    let (found, expected) = (found.to_string(), expected.into());
    GgufProblem::Malformed {
        offset: offset as u64,
        what,
        found,
        expected,
    }
}

fn read_entry(cursor: &mut Cursor<'_>, index: usize, alignment: u64) -> Result<Raw, GgufProblem> {
    let entry_offset = cursor.at();
    let name = read_name(cursor, index)?;
    let dims = read_dims(cursor, &name)?;
    let type_offset = cursor.at();
    let number = cursor.u32(format_args!("the type of tensor `{name}`"))?;
    let tensor_type = TensorType::from_number(number);
    let bytes = data_bytes(&name, &dims, tensor_type, type_offset)?;
    let offset_offset = cursor.at();
    let offset = cursor.u64(format_args!("the data offset of tensor `{name}`"))?;
    if !offset.is_multiple_of(alignment) {
        return Err(malformed(
            offset_offset,
            format!("the data offset of tensor `{name}`"),
            offset,
            format!("a multiple of the alignment {alignment}"),
        ));
    }
    let info = TensorInfo {
        name,
        dims,
        tensor_type,
        offset,
        bytes: 0,
    };
    Ok(Raw {
        entry_offset: entry_offset as u64,
        info,
        bytes,
    })
}

fn read_name(cursor: &mut Cursor<'_>, index: usize) -> Result<String, GgufProblem> {
    let offset = cursor.at();
    let what = || format!("the name of tensor {index}");
    let expected = || format!("UTF-8 text of 1 to {MAX_NAME_BYTES} bytes");
    let name = cursor.string(format_args!("the name of tensor {index}"))?;
    if name.is_empty() {
        return Err(malformed(offset, what(), "empty", expected()));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(malformed(
            offset,
            what(),
            format!("{} bytes long", name.len()),
            expected(),
        ));
    }
    std::str::from_utf8(name)
        .map(str::to_owned)
        .map_err(|e| malformed(offset, what(), format!("not UTF-8 ({e})"), expected()))
}

fn read_dims(cursor: &mut Cursor<'_>, name: &str) -> Result<Vec<usize>, GgufProblem> {
    let offset = cursor.at();
    let count = cursor.u32(format_args!("the number of dimensions of tensor `{name}`"))?;
    if !(1..=MAX_DIMS).contains(&count) {
        return Err(malformed(
            offset,
            format!("the number of dimensions of tensor `{name}`"),
            count,
            format!("1 to {MAX_DIMS}"),
        ));
    }
    let mut dims = Vec::new();
    let mut elements: usize = 1;
    for index in 0..count {
        let offset = cursor.at();
        let what = format_args!("dimension {index} of tensor `{name}`");
        let dim = cursor.u64(what)?;
        let extent = usize::try_from(dim).ok().filter(|&d| d >= 1);
        let product = extent.and_then(|d| elements.checked_mul(d));
        let (Some(extent), Some(product)) = (extent, product) else {
            let expected = "at least 1, and few enough values to count in 64 bits";
            return Err(malformed(offset, what.to_string(), dim, expected));
        };
        dims.push(extent);
        elements = product;
    }
    Ok(dims)
}

/// The bytes of a tensor's data, where the type's block size is known.
fn data_bytes(
    name: &str,
    dims: &[usize],
    tensor_type: TensorType,
    type_offset: usize,
) -> Result<Option<u64>, GgufProblem> {
    let Some((block_len, block_bytes)) = tensor_type.block() else {
        return Ok(None);
    };
    let cols = dims.first().copied().unwrap_or(0);
    if !cols.is_multiple_of(block_len) {
        return Err(malformed(
            type_offset,
            format!("the row length of tensor `{name}`"),
            cols,
            format!("a multiple of {block_len}, the block length of {tensor_type}"),
        ));
    }
    let blocks = dims.iter().product::<usize>() / block_len;
    let bytes = (blocks as u64).checked_mul(block_bytes as u64);
    bytes.map(Some).ok_or_else(|| {
        let expected = "fewer bytes of data than can be counted in 64 bits";
        malformed(
            type_offset,
            format!("the shape of tensor `{name}`"),
            format!("{dims:?}"),
            expected,
        )
    })
}

/// Indices in the order of the names.
fn sort_by_name(raws: &[Raw]) -> Result<Vec<u32>, GgufProblem> {
    let name = |i: &u32| raws[*i as usize].info.name.as_str();
    let mut sorted: Vec<u32> = (0u32..).take(raws.len()).collect();
    sorted.sort_by(|a, b| name(a).cmp(name(b)));
    match sorted
        .windows(2)
        .find(|pair| name(&pair[0]) == name(&pair[1]))
    {
        None => Ok(sorted),
        Some(pair) => Err(GgufProblem::Duplicate {
            what: "tensor",
            name: name(&pair[0]).to_owned(),
            first: raws[pair[0] as usize].entry_offset,
            second: raws[pair[1] as usize].entry_offset,
        }),
    }
}

/// Makes offsets absolute; checks that the data lie inside the file and don't overlap.
fn place(raws: &mut [Raw], data_start: u64, file_bytes: u64) -> Result<(), GgufProblem> {
    for raw in &mut *raws {
        let relative = raw.info.offset;
        let end = data_start.checked_add(relative).and_then(|offset| {
            raw.info.offset = offset;
            // Of an unknown size, at least one byte must be there.
            offset.checked_add(raw.bytes.unwrap_or(1))
        });
        if end.is_none_or(|end| end > file_bytes) {
            return Err(GgufProblem::TensorOutside {
                name: raw.info.name.clone(),
                offset: data_start.saturating_add(relative),
                bytes: raw.bytes.unwrap_or(1),
                file_bytes,
            });
        }
    }
    let mut order: Vec<usize> = (0..raws.len()).collect();
    order.sort_by_key(|&i| raws[i].info.offset);
    for (at, &i) in order.iter().enumerate() {
        let next = order.get(at + 1).map(|&n| (n, raws[n].info.offset));
        let offset = raws[i].info.offset;
        let room = next.map_or(file_bytes, |(_, start)| start) - offset;
        // Two tensors that start at the same place overlap whatever their sizes.
        let bytes = raws[i].bytes.unwrap_or(room.max(1));
        if let Some((n, start)) = next.filter(|_| bytes > room) {
            return Err(GgufProblem::TensorsOverlap {
                first: raws[i].info.name.clone(),
                first_end: offset + bytes,
                second: raws[n].info.name.clone(),
                offset: start,
            });
        }
        raws[i].info.bytes = bytes;
    }
    Ok(())
}
