//! `--device`: where the models run. The name is read, and the device tried, before any work: a missing driver is
//! one line here, where the backend itself would panic in the middle of loading a model.

use crate::exit::{Blame, Failure};
use anyhow::anyhow;
use burn::tensor::Device;
use std::fmt;
use std::str::FromStr;

/// A device as the command line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Flex,
    Cuda(usize),
    Wgpu(usize),
}

impl FromStr for Name {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let index = |digits: &str| digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
        match text.split_once(':') {
            None if text == "flex" => Some(Self::Flex),
            Some(("cuda", digits)) => index(digits).map(Self::Cuda),
            Some(("wgpu", digits)) => index(digits).map(Self::Wgpu),
            _ => None,
        }
        .ok_or_else(|| anyhow!("--device {text}: it must be flex (the CPU), cuda:N or wgpu:N, with N from 0"))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Flex => f.write_str("flex"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
            Self::Wgpu(index) => write!(f, "wgpu:{index}"),
        }
    }
}

/// The device of this name, tried once with a small computation.
pub fn parse(text: &str) -> Result<Device, Failure> {
    let name: Name = text.parse().request()?;
    match name {
        Name::Flex => Ok(Device::flex()),
        Name::Cuda(index) => cuda(name, index),
        Name::Wgpu(index) => wgpu(name, index),
    }
}

#[cfg(feature = "cuda")]
fn cuda(name: Name, index: usize) -> Result<Device, Failure> {
    use burn::tensor::DeviceType;
    let none = "no NVIDIA GPU found: it needs the driver (libcuda.so) and a GPU that this process may see";
    let device = pick(name, Device::enumerate(DeviceType::Cuda).into_vec(), index, none)?;
    tried(name, device, "it needs the CUDA toolkit's nvrtc (libnvrtc.so) and a driver that is not older than it")
}

#[cfg(not(feature = "cuda"))]
fn cuda(name: Name, _: usize) -> Result<Device, Failure> {
    let build = "build with `--features cuda` (needs the CUDA toolkit's nvrtc and a driver at run time)";
    Err(anyhow!("--device {name}: this build has no cuda; {build}")).request()
}

#[cfg(feature = "wgpu")]
fn wgpu(name: Name, index: usize) -> Result<Device, Failure> {
    use burn::tensor::DeviceType;
    let none = "no graphics adapter found: it needs a Vulkan, Metal or DirectX 12 driver";
    let device = pick(name, Device::enumerate(DeviceType::Wgpu).into_vec(), index, none)?;
    tried(name, device, "its driver must run compute shaders")
}

#[cfg(not(feature = "wgpu"))]
fn wgpu(name: Name, _: usize) -> Result<Device, Failure> {
    Err(anyhow!("--device {name}: this build has no wgpu; build with `--features wgpu`")).request()
}

/// Refuses to train on so many devices in builds that cannot.
pub fn check_several(count: usize) -> Result<(), Failure> {
    match count > 1 && !cfg!(feature = "cuda") {
        true => {
            Err(anyhow!("train.devices is {count}: this build has no cuda; build with `--features cuda`")).request()
        }
        false => Ok(()),
    }
}

/// The devices behind `first` that make up `count` with it: the next CUDA ones.
#[cfg(feature = "cuda")]
pub fn further(first: &Device, count: usize) -> Result<Vec<Device>, Failure> {
    use burn::tensor::DeviceType;
    if count == 1 {
        return Ok(Vec::new());
    }
    let found = Device::enumerate(DeviceType::Cuda).into_vec();
    let key = format!("train.devices is {count}");
    let Some(at) = found.iter().position(|device| device == first) else {
        return Err(anyhow!("{key}: only CUDA devices share a step; set --device cuda:N")).request();
    };
    let further = (at + 1..at + count).map(|index| cuda(Name::Cuda(index), index)).collect::<Result<_, Failure>>();
    further.map_err(|failure| failure.context(key))
}

/// The devices behind `first` that make up `count` with it: none, as this build can have no second.
#[cfg(not(feature = "cuda"))]
pub fn further(_: &Device, count: usize) -> Result<Vec<Device>, Failure> {
    check_several(count).map(|()| Vec::new())
}

/// The device at `index` of those that the backend found.
#[cfg_attr(not(any(feature = "cuda", feature = "wgpu")), allow(dead_code))]
fn pick<T>(name: Name, found: Vec<T>, index: usize, none: &str) -> Result<T, Failure> {
    let count = found.len();
    let why = match count {
        0 => none.to_owned(),
        1 => "there is one such device, number 0".to_owned(),
        _ => format!("there are {count} such devices, 0 to {}", count - 1),
    };
    found.into_iter().nth(index).ok_or_else(|| anyhow!("--device {name}: {why}")).request()
}

/// The device, if it can compute. The backends panic where they cannot, so the panic is caught and told as one line.
#[cfg_attr(not(any(feature = "cuda", feature = "wgpu")), allow(dead_code))]
fn tried(name: Name, device: Device, needs: &str) -> Result<Device, Failure> {
    use burn::tensor::Tensor;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let computed = std::panic::catch_unwind(|| {
        let two = Tensor::<1>::ones([8], &device) * 2.0;
        two.into_data().try_to_vec::<f32>().is_ok_and(|values| values == [2.0; 8])
    });
    std::panic::set_hook(hook);
    let why = match computed {
        Ok(true) => return Ok(device),
        Ok(false) => "twice one is not two there".to_owned(),
        Err(panic) => message(panic.as_ref()),
    };
    Err(anyhow!("--device {name}: it does not compute ({why}); {needs}")).request()
}

/// What a panic said.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the backend gave no reason").to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn words(failure: Failure) -> String {
        let Failure::Request(error) = failure else { panic!("{failure:?}") };
        error.to_string()
    }

    #[test]
    fn names_are_read_and_shown() {
        for (text, name) in
            [("flex", Name::Flex), ("cuda:0", Name::Cuda(0)), ("cuda:12", Name::Cuda(12)), ("wgpu:1", Name::Wgpu(1))]
        {
            assert_eq!(text.parse::<Name>().unwrap(), name);
            assert_eq!(name.to_string(), text);
        }
        for text in ["", "cpu", "cuda", "cuda:", "cuda:-1", "cuda:+1", "cuda:x", "flex:0", "CUDA:0", "cuda:0:1"] {
            let error = words(parse(text).unwrap_err());
            assert!(error.starts_with(&format!("--device {text}: it must be flex")), "{error}");
        }
    }

    #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
    #[test]
    fn a_build_without_a_backend_says_how_to_have_it() {
        for kind in ["cuda", "wgpu"] {
            let error = words(parse(&format!("{kind}:0")).unwrap_err());
            assert!(error.contains(&format!("this build has no {kind}; build with `--features {kind}`")), "{error}");
        }
    }

    #[test]
    fn an_index_out_of_range_names_the_range() {
        let pick = |found: &[u8], index| pick(Name::Cuda(index), found.to_vec(), index, "no GPU");
        assert_eq!(pick(&[5, 6], 1).unwrap(), 6);
        for (found, error) in
            [(&[][..], "no GPU"), (&[5], "one such device, number 0"), (&[5, 6], "2 such devices, 0 to 1")]
        {
            let line = words(pick(found, 2).unwrap_err());
            assert!(line.starts_with("--device cuda:2: ") && line.contains(error), "{line}");
        }
    }

    #[test]
    fn a_device_is_tried_and_a_panic_is_one_line() {
        assert!(tried(Name::Flex, Device::flex(), "").is_ok());
        let panic = std::panic::catch_unwind(|| panic!("libx.so not found")).unwrap_err();
        assert_eq!(message(panic.as_ref()), "libx.so not found");
    }
}
