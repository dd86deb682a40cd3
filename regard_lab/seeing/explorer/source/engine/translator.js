// The Transformer that translates, of regard_lab.models.

import {Attention, feedForward, lastRows, meanVector, residual} from "./layers.js";
import {isWord} from "./model.js";
import {filled, normed} from "./numbers.js";
import {Writer} from "./writer.js";

/** A Transformer that translates. */
export class Translator extends Writer {
  constructor(content, tensors) {
    super(content, tensors);
    const {dim, heads, positions} = content.config;
    const {config} = this;
    const make = (name, kind, layer, text, rotates) =>
      new Attention(this.weights, name, {
        kind,
        layer,
        dim,
        heads,
        headDim: dim / heads,
        text,
        causal: kind === "decoder",
        base: rotates && positions === "rotary" ? 10_000 : 0,
      });
    this.encoder = filled(config.encoder_layers, (layer) =>
      make(`encoder.${layer}.attention`, "encoder", layer, config.encoder_pattern, true),
    );
    this.decoder = filled(config.decoder_layers, (layer) => ({
      own: make(`decoder.${layer}.self_attention`, "decoder", layer, config.decoder_pattern, true),
      cross: make(`decoder.${layer}.cross_attention`, "cross", layer, config.cross_pattern, false),
    }));
  }

  get shapes() {
    const {encoder_layers: encoder, decoder_layers: decoder, heads} = this.config;
    return {encoder: [encoder, heads], decoder: [decoder, heads], cross: [decoder, heads]};
  }

  #norm(name) {
    return (x) => normed(x, this.weights.of(`${name}.norm`));
  }

  #part(name, x, part) {
    return residual(x, this.#norm(name), this.config.norm === "pre", part);
  }

  #last(name, x) {
    return this.config.norm === "pre" ? normed(x, this.weights.of(name)) : x;
  }

  /** The encoded source, once for each set of erased places: (texts * ids, dim). */
  encode(ids, erased, settings) {
    const {dim, activation} = this.config;
    const texts = erased.length;
    let x = this.embedded(this.table, ids, {
      erased,
      mean: meanVector(this.table, ids.filter(isWord), dim),
    });
    this.encoder.forEach((attention, layer) => {
      const name = `encoder.${layer}`;
      x = this.#part(`${name}.around_attention`, x, (x) =>
        attention.read(
          x,
          texts,
          0,
          attention.remember(x, texts, attention.memory(texts, ids.length)),
          settings,
        ),
      );
      x = this.#part(`${name}.around_feed_forward`, x, (x) =>
        feedForward(this.weights, `${name}.feed_forward`, activation, x, dim),
      );
    });
    return this.#last("encoder_norm", x);
  }

  /**
   * What the decoder keeps: the keys and values of encoded sources, and room for those of targets.
   */
  start(encoded, sources, texts, room) {
    return this.decoder.map(({own, cross}) => ({
      own: own.memory(texts, room),
      cross: cross.remember(
        encoded,
        sources,
        cross.memory(sources, encoded.length / this.config.dim / sources),
      ),
    }));
  }

  /** Logits after each of some target ids, or after the last alone: (texts * ids, vocabulary). */
  step(ids, memories, texts, settings, {erased, mean, lastOnly = false} = {}) {
    const {dim, activation, tied} = this.config;
    const start = memories[0].own.count;
    let x = this.embedded(this.targetTable, ids, {
      start,
      erased: erased ?? Array(texts).fill(null),
      mean,
    });
    this.decoder.forEach(({own, cross}, layer) => {
      const name = `decoder.${layer}`;
      const memory = memories[layer];
      x = this.#part(`${name}.around_self_attention`, x, (x) =>
        own.read(x, texts, start, own.remember(x, texts, memory.own), settings),
      );
      x = this.#part(`${name}.around_cross_attention`, x, (x) =>
        cross.read(x, texts, start, memory.cross, settings),
      );
      x = this.#part(`${name}.around_feed_forward`, x, (x) =>
        feedForward(this.weights, `${name}.feed_forward`, activation, x, dim),
      );
    });
    if (lastOnly) x = lastRows(x, texts, dim);
    return settings.tempered(
      this.weights.multiply(
        this.#last("decoder_norm", x),
        tied ? this.targetTable : this.weights.of("to_vocabulary").weight,
        null,
        dim,
      ),
    );
  }
}
