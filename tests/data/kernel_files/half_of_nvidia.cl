/* NVIDIA's compiler computes with half without announcing it, and lacks its functions. */
#if defined(__NV_CL_C_VERSION) && !defined(cl_khr_fp16)
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
half4 read_imageh(read_only image1d_buffer_t image, int at) {
    const float4 pixel = read_imagef(image, at);
    return (half4)((half)pixel.x, (half)pixel.y, (half)pixel.z, (half)pixel.w);
}
__attribute__((overloadable)) half4 vload4(size_t at, const global half *from) {
    return (half4)(from[4 * at], from[4 * at + 1], from[4 * at + 2], from[4 * at + 3]);
}
__attribute__((overloadable)) float convert_float(half number) { return (float)number; }
#endif
