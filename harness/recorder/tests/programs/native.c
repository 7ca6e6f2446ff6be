// A CUDA program without Python: two lines launch the same kernel, the second one with a bad value.
#include <stddef.h>
#include <stdio.h>

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(CUcontext *, int);
int cuCtxSetCurrent(CUcontext);
int cuCtxSynchronize(void);
int cuModuleLoadData(CUmodule *, const void *);
int cuModuleGetFunction(CUfunction *, CUmodule, const char *);
int cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                   void **);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemsetD8Async(unsigned long long, unsigned char, size_t, CUstream);

static void __attribute__((noinline)) gather(CUfunction function, unsigned long long word) {
    unsigned microseconds = 500;
    void *parameters[] = {&microseconds, &word};
    cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL);
}

int main(void) {
    CUcontext context;
    CUmodule module;
    CUfunction function;
    unsigned long long good, bad;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    if (cuModuleLoadData(&module, "") || cuModuleGetFunction(&function, module, "_Z6gatherPj_fault_assert")) return 2;
    if (cuMemAlloc_v2(&good, 4) || cuMemAlloc_v2(&bad, 4)) return 2;
    cuMemsetD8Async(good, 0, 4, NULL);
    cuMemsetD8Async(bad, 1, 4, NULL);
    gather(function, good);
    gather(function, bad); // FAULT
    gather(function, good);
    printf("%d\n", cuCtxSynchronize());
    return 0;
}
