//! Tensors as plain numbers. Shapes and strides are in elements, addresses and ranges in bytes.

/// Element type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit signed integers.
    Int32,
    /// 64-bit signed integers.
    Int64,
    /// Any other type, by name. No tensor of such a type is accepted.
    Other(String),
}

impl DType {
    /// Bytes of an element; 0 for a type that is not accepted.
    pub const fn size(&self) -> u64 {
        match self {
            DType::Int32 => 4,
            DType::Int64 => 8,
            DType::Other(_) => 0,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::Int32 => "int32",
            DType::Int64 => "int64",
            DType::Other(name) => name,
        })
    }
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Host memory.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// Any other kind, by torch's name. No kernel and no host refresh runs there.
    Other(&'static str),
}

impl DeviceKind {
    /// The kind by torch's name.
    pub fn parse(name: &str) -> DeviceKind {
        const KNOWN: [&str; 7] = ["meta", "xpu", "mps", "hpu", "npu", "xla", "privateuseone"];
        match name {
            "cpu" => DeviceKind::Cpu,
            "cuda" => DeviceKind::Cuda,
            _ => DeviceKind::Other(KNOWN.into_iter().find(|&known| known == name).unwrap_or("other")),
        }
    }

    /// A number for each kind of device, for keys.
    pub const fn code(self) -> u64 {
        match self {
            DeviceKind::Cpu => 0,
            DeviceKind::Cuda => 1,
            DeviceKind::Other(_) => 2,
        }
    }
}

/// A device that holds tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Kind of the device.
    pub kind: DeviceKind,
    /// Index of the device; 0 for the CPU.
    pub index: i32,
}

impl Device {
    /// Host memory.
    pub const CPU: Device = Device { kind: DeviceKind::Cpu, index: 0 };
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.write_str("cpu"),
            DeviceKind::Cuda => write!(f, "cuda:{}", self.index),
            DeviceKind::Other(name) => write!(f, "{name}:{}", self.index),
        }
    }
}

/// A tensor before validation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Address of the first element.
    pub ptr: u64,
    /// Element type.
    pub dtype: DType,
    /// Device of the tensor.
    pub device: Device,
    /// Size of each dimension.
    pub shape: Vec<u64>,
    /// Stride of each dimension, in elements.
    pub strides: Vec<u64>,
}

/// A half-open range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl ByteRange {
    /// Whether the two ranges share a byte.
    pub const fn overlaps(&self, other: &ByteRange) -> bool {
        self.start < other.end && other.start < self.end
    }
}
