// The notebook widget: the page in a frame that can reach neither the notebook nor the network. What is chosen in the page
// is shared with Python, both ways, by messages.

export default {
  render({model, el}) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts allow-downloads");
    frame.title = "Attention explorer";
    frame.style.cssText = `width: 100%; height: ${Number(model.get("height"))}px; border: 0`;
    frame.srcdoc = model.get("html");
    const tell = () => frame.contentWindow?.postMessage({regard: model.get("chosen")}, "*");
    const hear = ({source, data}) => {
      if (source !== frame.contentWindow || !(data?.regard instanceof Object)) return;
      if (JSON.stringify(data.regard) === JSON.stringify(model.get("chosen"))) return;
      model.set("chosen", data.regard);
      model.save_changes();
    };
    frame.addEventListener("load", tell);
    model.on("change:chosen", tell);
    addEventListener("message", hear);
    el.append(frame);
    return () => {
      removeEventListener("message", hear);
      model.off("change:chosen", tell);
    };
  },
};
