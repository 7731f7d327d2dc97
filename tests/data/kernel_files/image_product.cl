// Each work-item computes rows_per_item rows of one column: eight weights are a pixel, four activations another.
__constant sampler_t PLAIN = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;

__kernel void image_product(
    __read_only image1d_buffer_t weights, __global const float *scales, __read_only image2d_t activations,
    __global float *result, const int m, const int n, const int k
) {
    const int column = get_global_id(0);
    const int first = get_global_id(1) * rows_per_item;
    if (column >= n)
        return;
    for (int row = first; row < min(first + rows_per_item, m); row++) {
        float sum = 0;
        for (int eight = 0; eight < k / 8; eight++) {
            const uint codes = read_imageui(weights, row * (k / 8) + eight).x;
            const int4 low = convert_int4((uint4)(codes, codes >> 4, codes >> 8, codes >> 12) & 15u) - 8;
            const int4 high = convert_int4((uint4)(codes >> 16, codes >> 20, codes >> 24, codes >> 28) & 15u) - 8;
            const float4 a = read_imagef(activations, PLAIN, (int2)(2 * eight, column));
            const float4 b = read_imagef(activations, PLAIN, (int2)(2 * eight + 1, column));
            sum += scales[row * (k / 32) + eight / 4] * (dot(convert_float4(low), a) + dot(convert_float4(high), b));
        }
        result[column * m + row] = sum;
    }
}
