// Where other views are.

import { at } from "./api.js";
import { h } from "./dom.js";

export const sizeAddress = (device, family, shape) => at(`#/size/${device}`, { family, shape });

export const sizeLink = (device, family, shape) => h("a", { href: sizeAddress(device, family, shape) }, shape);
