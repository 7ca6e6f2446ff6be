//! CUPTI: where it is, and the few calls that are needed.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};

use crate::dl::{Library, folders_of, functions};

/// `CUPTI_CB_DOMAIN_DRIVER_API`.
pub(crate) const DRIVER_API: u32 = 1;
/// `CUPTI_API_ENTER`; the other site is `CUPTI_API_EXIT`.
pub(crate) const ENTER: u32 = 0;
/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`.
const MULTIPLE_SUBSCRIBERS: i32 = 39;

/// `CUpti_CallbackFunc`. The domain is a number here: a newer CUPTI may have one that no list knows.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);

functions! {
    /// What is needed of CUPTI.
    Functions {
        version = c"cuptiGetVersion": fn(*mut u32) -> i32;
        subscribe = c"cuptiSubscribe": fn(*mut *mut c_void, Callback, *mut c_void) -> i32;
        unsubscribe = c"cuptiUnsubscribe": fn(*mut c_void) -> i32;
        enable_domain = c"cuptiEnableDomain": fn(u32, *mut c_void, u32) -> i32;
        enable_callback = c"cuptiEnableCallback": fn(u32, *mut c_void, u32, u32) -> i32;
    }
}

/// Why there are no call-backs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Looked for in these places.
    NotFound(Vec<PathBuf>),
    /// Nsight, a profiler: only one client at a time.
    Busy,
    /// The program asked for CUPTI before the recorder was there, for this tool.
    GaveWay(String),
    /// Anything else.
    Failed(String),
}

/// A subscription.
pub(crate) struct Cupti {
    functions: Functions,
    subscriber: usize,
    /// `cuptiGetVersion`.
    pub(crate) version: u32,
}

impl Cupti {
    /// Subscribes to the whole driver interface except `quiet`.
    pub(crate) fn subscribe(named: Option<&Path>, callback: Callback, quiet: &[u32]) -> Result<Self, Refusal> {
        let functions = Functions::load(find(named)?)
            .map_err(|name| Refusal::Failed(format!("CUPTI has no {}", name.to_string_lossy())))?;
        let mut version = 0;
        // SAFETY: writes one integer.
        unsafe { (functions.version)(&raw mut version) };
        let mut subscriber = std::ptr::null_mut();
        // SAFETY: the call-back has CUPTI's signature and lives as long as the process.
        match unsafe { (functions.subscribe)(&raw mut subscriber, callback, std::ptr::null_mut()) } {
            0 => {}
            MULTIPLE_SUBSCRIBERS => return Err(Refusal::Busy),
            rc => return Err(Refusal::Failed(format!("cuptiSubscribe returned {rc}"))),
        }
        // SAFETY: the subscriber was just made.
        let rc = unsafe { (functions.enable_domain)(1, subscriber, DRIVER_API) };
        if rc != 0 {
            return Err(Refusal::Failed(format!("cuptiEnableDomain returned {rc}")));
        }
        for &id in quiet {
            // An id that this CUPTI does not know yet is none that it calls back for.
            // SAFETY: as above.
            unsafe { (functions.enable_callback)(0, subscriber, DRIVER_API, id) };
        }
        Ok(Self { functions, subscriber: subscriber as usize, version })
    }

    /// Ends the subscription.
    pub(crate) fn unsubscribe(&self) {
        // SAFETY: CUPTI checks the handle.
        unsafe { (self.functions.unsubscribe)(self.subscriber as *mut c_void) };
    }
}

/// The CUPTI of the CUDA that the process uses: what is loaded already, what lies beside the loaded CUDA libraries (as in
/// PyTorch's wheels), an installed toolkit.
fn find(named: Option<&Path>) -> Result<Library, Refusal> {
    if let Some(path) = named {
        return Library::open(path).ok_or_else(|| Refusal::NotFound(vec![path.to_path_buf()]));
    }
    let versions = ["libcupti.so.13", "libcupti.so.12", "libcupti.so.11"];
    for name in versions {
        if let Some(library) = CString::new(name).ok().and_then(|n| Library::loaded(&n)) {
            return Ok(library);
        }
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for beside in ["libcudart.so", "libcublas.so", "libtorch_cuda.so"].into_iter().flat_map(folders_of) {
        folders.push(beside.join("../../cuda_cupti/lib"));
        folders.push(beside.join("../../nvidia/cu13/lib"));
        folders.push(beside.join("../../nvidia/cuda_cupti/lib"));
        folders.push(beside);
    }
    for toolkit in ["/usr/local/cuda", "/opt/cuda"] {
        folders.push(Path::new(toolkit).join("extras/CUPTI/lib64"));
        folders.push(Path::new(toolkit).join("lib64"));
    }
    folders.push(PathBuf::new());
    let places: Vec<PathBuf> = folders.iter().flat_map(|folder| versions.iter().map(|n| folder.join(n))).collect();
    places.iter().find_map(|path| Library::open(path)).ok_or(Refusal::NotFound(places))
}
