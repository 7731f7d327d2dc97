/* The kernel of ggml/conv2d.cl for 3 x 3, padding 1. It takes its local memory as void *, for which NVIDIA promises an
   alignment of 1 byte: its loads of floats would fail there. */
kernel void conv_2d_3x3(
    global float *knl, global float *src, global float *dst, local float4 *shared, uint cout, uint cin, uint w, uint h
) {
    kernel_conv_2d(
        knl, 0, src, 0, dst, 0, shared, cout, cin, 1, 3, 3, w, h, w, h, 1, 1, 1, 1, 1, 1,
        3, 9, 9 * cin, w, w * h, w * h * cin, w, w * h, w * h * cout
    );
}
