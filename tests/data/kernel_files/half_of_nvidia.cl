/* NVIDIA's compiler computes with half without announcing it, and lacks its functions. */
#if defined(__NV_CL_C_VERSION) && !defined(cl_khr_fp16)
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
half4 half_of_image(read_only image1d_buffer_t image, int at) {
    const float4 pixel = read_imagef(image, at);
    return (half4)((half)pixel.x, (half)pixel.y, (half)pixel.z, (half)pixel.w);
}
__attribute__((overloadable)) half4 four_of(size_t at, const global half *from) {
    return (half4)(from[4 * at], from[4 * at + 1], from[4 * at + 2], from[4 * at + 3]);
}
__attribute__((overloadable)) ushort4 four_of(size_t at, const global ushort *from) { return vload4(at, from); }
#define read_imageh half_of_image
#define vload4 four_of
#define convert_float(number) ((float)(number))
#endif
