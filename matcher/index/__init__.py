"""In-memory index of waiting work: bitmaps over requirement classes, samplers, the pools of places."""
