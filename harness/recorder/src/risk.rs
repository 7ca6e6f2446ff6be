//! Which kernels can fault by the *values* that they are given.
//!
//! A completion marker costs the GPU about 2 us, because it is a fence. So a marker goes before and behind every kernel
//! that follows indices out of tensors, or that contains a device-side assertion, or that is not known at all (Triton
//! kernels, extensions, the user's own); the known element-wise kernels, reductions and matrix products of PyTorch and
//! the libraries share one for several. These can still fault (a block that was freed), and are then located to within
//! [`STRIDE`] launches.
//!
//! Source: the templates and functors of PyTorch's CUDA sources, names of cuBLAS and cuDNN kernels as CUPTI gives them.

/// At most so many launches go without a marker.
pub(crate) const STRIDE: u32 = 16;

/// As many where the GPU waits for the program anyway, so that a marker costs it nothing, but still the host a driver call.
pub(crate) const IDLE_STRIDE: u32 = 8;

/// The same for the nodes of a captured graph, where the GPU waits for nothing else.
pub(crate) const GRAPH_STRIDE: u32 = 64;

/// Words in a mangled name after which even a known template follows indices or asserts.
const RISKY: &[&str] = &[
    "index",
    "Index",
    "gather",
    "Gather",
    "scatter",
    "Scatter",
    "embedding",
    "Embedding",
    "assert",
    "nll_loss",
    "NLL",
    "cross_entropy",
    "bernoulli",
    "multinomial",
    "Multinomial",
    "MultiMargin",
    "MultiLabel",
    "take",
    "put_",
    "searchsorted",
    "bucketize",
    "histogram",
    "ctc",
    "CTC",
    "one_hot",
    "repeat_interleave",
    "segment",
    "jagged",
    "nested",
    "unique",
    "nonzero",
    "masked_select",
];

/// Templates and families whose addresses follow from shapes alone.
const SAFE: &[&str] = &[
    "vectorized_elementwise_kernel",
    "unrolled_elementwise_kernel",
    "elementwise_kernel",
    "reduce_kernel",
    "multi_tensor_apply_kernel",
    "softmax_warp_forward",
    "softmax_warp_backward",
    "cunn_SoftMax",
    "layer_norm",
    "LayerNorm",
    "GammaBeta",
    "RowwiseMoments",
    "batch_norm",
    "CatArrayBatchedCopy",
    "fused_dropout",
    "distribution_elementwise",
    "triu_tril",
    "flash_fwd",
    "flash_bwd",
    "fmha",
    "pytorch_flash",
    "cutlass",
    "cublas",
    "gemm",
    "gemv",
    "splitKreduce",
    "nvjet",
    "xmma",
    "cudnn",
    "implicit_convolve",
    "max_pool",
    "avg_pool",
    "upsample",
    "im2col",
    "col2im",
];

/// Inductor names a kernel after the first operators that it fused, at most ten: a name that may have been cut says
/// nothing about the rest.
const INDUCTOR_NAMED: usize = 10;

/// Whether values alone can make this kernel fault, or it is unknown.
pub(crate) fn is_risky(symbol: &str) -> bool {
    if RISKY.iter().any(|word| symbol.contains(word)) {
        return true;
    }
    if let Some(fused) = symbol.strip_prefix("triton_") {
        // triton_poi_fused_add_mul_relu_3: pointwise; _red_ and _per_ are reductions.
        let generated = ["poi_fused_", "red_fused_", "per_fused_"].iter().any(|kind| fused.starts_with(kind));
        return !generated || fused.split('_').count() - 2 >= INDUCTOR_NAMED;
    }
    !SAFE.iter().any(|family| symbol.contains(family))
}

#[cfg(test)]
mod tests {
    use super::is_risky;

    #[test]
    fn kernels_as_cupti_names_them() {
        for symbol in [
            "_ZN2at6native49_GLOBAL__N__00000000_7_Loss_cu_nll_loss_forward_reduce_cuda_kernel_2dIfflEEvPT_",
            "_ZN2at6native24index_elementwise_kernelILi128ELi4EZNS0_16gpu_index_kernelIZNS0_17index_kernel_implINS0_10OpaqueTypeILi4EEEEEvRNS",
            "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_65_GLOBAL__N__binary_cross_entropy_kernelRNS_18TensorIteratorBase",
            "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_9_assert_asyncEEEEEvT1_",
            "scale",
            "my_gpu_kernel",
            "triton_poi_fused_index_mul_relu_sin_0",
            "triton_poi_fused_a_b_c_d_e_f_g_h_i_j_0",
            "triton_custom",
            "",
        ] {
            assert!(is_risky(symbol), "{symbol}");
        }
        for symbol in [
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
            "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIffffEEjfLi4ELi4EEEEEvT1_",
            "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT",
            "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_cublas",
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_32x6_nn_align4>",
            "triton_poi_fused_add_mul_relu_3",
        ] {
            assert!(!is_risky(symbol), "{symbol}");
        }
    }
}
