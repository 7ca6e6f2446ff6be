// An operator whose kernel checks its indices with c10's device-side assertions (c10/cuda/CUDADeviceAssertion.h).
//
// The device half of that header is complete, so it works with a stock wheel. The host half is in libc10_cuda, where a
// stock wheel has empty bodies: its registry hands out a null pointer, and a failed CUDA_KERNEL_ASSERT2 is then not
// recorded at all (`take_rows_c10` shows that). So this file brings a small registry of its own (`take_rows`), which
// reports in c10's words.
#define TORCH_USE_CUDA_DSA  // of the build: in the environment it means nothing

#include <ATen/ATen.h>
#include <c10/cuda/CUDADeviceAssertion.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <sstream>
#include <vector>

namespace {

using c10::cuda::DeviceAssertionsData;

__global__ void rows_kernel(const float* table, const int64_t* index, float* out, int64_t rows, int64_t width,
                            TORCH_DSA_KERNEL_ARGS) {
  const int64_t row = index[blockIdx.x];
  CUDA_KERNEL_ASSERT2(row >= 0 && row < rows);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    out[blockIdx.x * width + i] = table[row * width + i];
  }
}

struct Launch {
  const char* kernel;
  const char* file;
  const char* function;
  int line;
  int device;
  int64_t stream;
};

std::vector<Launch> launches;  // a launch's number is its place here

DeviceAssertionsData* failures() {
  static DeviceAssertionsData* data = [] {
    DeviceAssertionsData* made = nullptr;
    C10_CUDA_CHECK(cudaMallocManaged(&made, sizeof(DeviceAssertionsData)));
    *made = DeviceAssertionsData();
    return made;
  }();
  return data;
}

at::Tensor prepare(const at::Tensor& table, const at::Tensor& index) {
  TORCH_CHECK(table.is_cuda() && table.is_contiguous() && table.dim() == 2 && table.scalar_type() == at::kFloat);
  TORCH_CHECK(index.is_cuda() && index.is_contiguous() && index.dim() == 1 && index.scalar_type() == at::kLong);
  return at::zeros({index.size(0), table.size(1)}, table.options());
}

at::Tensor take_rows(const at::Tensor& table, const at::Tensor& index) {
  auto out = prepare(table, index);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  launches.push_back({"rows_kernel", __FILE__, __func__, __LINE__, table.get_device(), stream.id()});
  rows_kernel<<<index.size(0), 32, 0, stream>>>(table.data_ptr<float>(), index.data_ptr<int64_t>(),
                                                out.data_ptr<float>(), table.size(0), table.size(1), failures(),
                                                static_cast<uint32_t>(launches.size() - 1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

// The same through c10's own registry: in a stock wheel nothing is recorded and nothing is raised.
at::Tensor take_rows_c10(const at::Tensor& table, const at::Tensor& index) {
  auto out = prepare(table, index);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  auto& registry = c10::cuda::CUDAKernelLaunchRegistry::get_singleton_ref();
  const auto caller = registry.insert(__FILE__, __func__, __LINE__, "rows_kernel", static_cast<int32_t>(stream.id()));
  rows_kernel<<<index.size(0), 32, 0, stream>>>(table.data_ptr<float>(), index.data_ptr<int64_t>(),
                                                out.data_ptr<float>(), table.size(0), table.size(1),
                                                registry.get_uvm_assertions_ptr_for_current_device(), caller);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

// Waits, and raises the report if an assertion failed. The context lives on: the failing thread only returned.
void check() {
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  const auto* data = failures();
  const int found = std::min(data->assertion_count, C10_CUDA_DSA_ASSERTION_COUNT);
  if (found == 0) {
    return;
  }
  std::ostringstream out;
  const auto index = [](const int32_t* at) {
    std::ostringstream text;
    text << "[" << at[0] << "," << at[1] << "," << at[2] << "]";
    return text.str();
  };
  const auto& first = launches.at(data->assertions[0].caller);
  out << "Looking for device-side assertion failure information...\n"
      << found << " CUDA device-side assertion failures were found on GPU #" << first.device << "!\n";
  if (data->assertion_count > found) {
    out << "But at least " << data->assertion_count << " assertion failures occurred on the device\n";
  }
  for (int i = 0; i < found; ++i) {
    const auto& self = data->assertions[i];
    const auto& launch = launches.at(self.caller);
    out << "Assertion failure " << i << "\n"
        << "  GPU assertion failure message = " << self.assertion_msg << "\n"
        << "  File containing assertion = " << self.filename << ":" << self.line_number << "\n"
        << "  Device function containing assertion = " << self.function_name << "\n"
        << "  Thread ID that failed assertion = " << index(self.thread_id) << "\n"
        << "  Block ID that failed assertion = " << index(self.block_id) << "\n"
        << "  File containing kernel launch = " << launch.file << ":" << launch.line << "\n"
        << "  Function containing kernel launch = " << launch.function << "\n"
        << "  Name of kernel launched that led to failure = " << launch.kernel << "\n"
        << "  Device that launched kernel = " << launch.device << "\n"
        << "  Stream kernel was launched on = " << launch.stream << "\n"
        << "  Backtrace of kernel launch site = Launch stacktracing disabled.\n";
  }
  *failures() = DeviceAssertionsData();
  TORCH_CHECK(false, out.str());
}

}  // namespace

// No pybind: the library does not depend on the version of Python.
TORCH_LIBRARY(faultlab_rows, m) {
  m.def("take_rows(Tensor table, Tensor index) -> Tensor", &take_rows);
  m.def("take_rows_c10(Tensor table, Tensor index) -> Tensor", &take_rows_c10);
  m.def("check() -> ()", &check);
}
