/* sources 30968814be2fae89385f341f7f0934487e6cda7744d099e9819515ccef2ba03d */
var _e=globalThis,An=t=>t,qt=_e.trustedTypes,Mn=qt?qt.createPolicy("lit-html",{createHTML:t=>t}):void 0,Cn="$lit$",J=`lit$${Math.random().toFixed(9).slice(2)}$`,Nn="?"+J,So=`<${Nn}>`,it=document,kt=()=>it.createComment(""),vt=t=>t===null||typeof t!="object"&&typeof t!="function",Ee=Array.isArray,To=t=>Ee(t)||typeof t?.[Symbol.iterator]=="function",ke=`[ 	
\f\r]`,xt=/<(?:(!--|\/[^a-zA-Z])|(\/?[a-zA-Z][^>\s]*)|(\/?$))/g,Sn=/-->/g,Tn=/>/g,ot=RegExp(`>|${ke}(?:([^\\s"'>=/]+)(${ke}*=${ke}*(?:[^ 	
\f\r"'\`<>=]|("|')|))|$)`,"g"),_n=/'/g,En=/"/g,Ln=/^(?:script|style|textarea|title)$/i,Oe=t=>(e,...n)=>({_$litType$:t,strings:e,values:n}),u=Oe(1),Ca=Oe(2),Na=Oe(3),At=Symbol.for("lit-noChange"),p=Symbol.for("lit-nothing"),On=new WeakMap,rt=it.createTreeWalker(it,129);function jn(t,e){if(!Ee(t)||!t.hasOwnProperty("raw"))throw Error("invalid template strings array");return Mn!==void 0?Mn.createHTML(e):e}var _o=(t,e)=>{let n=t.length-1,s=[],o,r=e===2?"<svg>":e===3?"<math>":"",i=xt;for(let c=0;c<n;c++){let a=t[c],l,h,d=-1,w=0;for(;w<a.length&&(i.lastIndex=w,h=i.exec(a),h!==null);)w=i.lastIndex,i===xt?h[1]==="!--"?i=Sn:h[1]!==void 0?i=Tn:h[2]!==void 0?(Ln.test(h[2])&&(o=RegExp("</"+h[2],"g")),i=ot):h[3]!==void 0&&(i=ot):i===ot?h[0]===">"?(i=o??xt,d=-1):h[1]===void 0?d=-2:(d=i.lastIndex-h[2].length,l=h[1],i=h[3]===void 0?ot:h[3]==='"'?En:_n):i===En||i===_n?i=ot:i===Sn||i===Tn?i=xt:(i=ot,o=void 0);let m=i===ot&&t[c+1].startsWith("/>")?" ":"";r+=i===xt?a+So:d>=0?(s.push(l),a.slice(0,d)+Cn+a.slice(d)+J+m):a+J+(d===-2?c:m)}return[jn(t,r+(t[n]||"<?>")+(e===2?"</svg>":e===3?"</math>":"")),s]},Mt=class t{constructor({strings:e,_$litType$:n},s){let o;this.parts=[];let r=0,i=0,c=e.length-1,a=this.parts,[l,h]=_o(e,n);if(this.el=t.createElement(l,s),rt.currentNode=this.el.content,n===2||n===3){let d=this.el.content.firstChild;d.replaceWith(...d.childNodes)}for(;(o=rt.nextNode())!==null&&a.length<c;){if(o.nodeType===1){if(o.hasAttributes())for(let d of o.getAttributeNames())if(d.endsWith(Cn)){let w=h[i++],m=o.getAttribute(d).split(J),f=/([.?@])?(.*)/.exec(w);a.push({type:1,index:r,name:f[2],strings:m,ctor:f[1]==="."?Ae:f[1]==="?"?Me:f[1]==="@"?Se:ft}),o.removeAttribute(d)}else d.startsWith(J)&&(a.push({type:6,index:r}),o.removeAttribute(d));if(Ln.test(o.tagName)){let d=o.textContent.split(J),w=d.length-1;if(w>0){o.textContent=qt?qt.emptyScript:"";for(let m=0;m<w;m++)o.append(d[m],kt()),rt.nextNode(),a.push({type:2,index:++r});o.append(d[w],kt())}}}else if(o.nodeType===8)if(o.data===Nn)a.push({type:2,index:r});else{let d=-1;for(;(d=o.data.indexOf(J,d+1))!==-1;)a.push({type:7,index:r}),d+=J.length-1}r++}}static createElement(e,n){let s=it.createElement("template");return s.innerHTML=e,s}};function ut(t,e,n=t,s){if(e===At)return e;let o=s!==void 0?n._$Co?.[s]:n._$Cl,r=vt(e)?void 0:e._$litDirective$;return o?.constructor!==r&&(o?._$AO?.(!1),r===void 0?o=void 0:(o=new r(t),o._$AT(t,n,s)),s!==void 0?(n._$Co??=[])[s]=o:n._$Cl=o),o!==void 0&&(e=ut(t,o._$AS(t,e.values),o,s)),e}var ve=class{constructor(e,n){this._$AV=[],this._$AN=void 0,this._$AD=e,this._$AM=n}get parentNode(){return this._$AM.parentNode}get _$AU(){return this._$AM._$AU}u(e){let{el:{content:n},parts:s}=this._$AD,o=(e?.creationScope??it).importNode(n,!0);rt.currentNode=o;let r=rt.nextNode(),i=0,c=0,a=s[0];for(;a!==void 0;){if(i===a.index){let l;a.type===2?l=new St(r,r.nextSibling,this,e):a.type===1?l=new a.ctor(r,a.name,a.strings,this,e):a.type===6&&(l=new Te(r,this,e)),this._$AV.push(l),a=s[++c]}i!==a?.index&&(r=rt.nextNode(),i++)}return rt.currentNode=it,o}p(e){let n=0;for(let s of this._$AV)s!==void 0&&(s.strings!==void 0?(s._$AI(e,s,n),n+=s.strings.length-2):s._$AI(e[n])),n++}},St=class t{get _$AU(){return this._$AM?._$AU??this._$Cv}constructor(e,n,s,o){this.type=2,this._$AH=p,this._$AN=void 0,this._$AA=e,this._$AB=n,this._$AM=s,this.options=o,this._$Cv=o?.isConnected??!0}get parentNode(){let e=this._$AA.parentNode,n=this._$AM;return n!==void 0&&e?.nodeType===11&&(e=n.parentNode),e}get startNode(){return this._$AA}get endNode(){return this._$AB}_$AI(e,n=this){e=ut(this,e,n),vt(e)?e===p||e==null||e===""?(this._$AH!==p&&this._$AR(),this._$AH=p):e!==this._$AH&&e!==At&&this._(e):e._$litType$!==void 0?this.$(e):e.nodeType!==void 0?this.T(e):To(e)?this.k(e):this._(e)}O(e){return this._$AA.parentNode.insertBefore(e,this._$AB)}T(e){this._$AH!==e&&(this._$AR(),this._$AH=this.O(e))}_(e){this._$AH!==p&&vt(this._$AH)?this._$AA.nextSibling.data=e:this.T(it.createTextNode(e)),this._$AH=e}$(e){let{values:n,_$litType$:s}=e,o=typeof s=="number"?this._$AC(e):(s.el===void 0&&(s.el=Mt.createElement(jn(s.h,s.h[0]),this.options)),s);if(this._$AH?._$AD===o)this._$AH.p(n);else{let r=new ve(o,this),i=r.u(this.options);r.p(n),this.T(i),this._$AH=r}}_$AC(e){let n=On.get(e.strings);return n===void 0&&On.set(e.strings,n=new Mt(e)),n}k(e){Ee(this._$AH)||(this._$AH=[],this._$AR());let n=this._$AH,s,o=0;for(let r of e)o===n.length?n.push(s=new t(this.O(kt()),this.O(kt()),this,this.options)):s=n[o],s._$AI(r),o++;o<n.length&&(this._$AR(s&&s._$AB.nextSibling,o),n.length=o)}_$AR(e=this._$AA.nextSibling,n){for(this._$AP?.(!1,!0,n);e!==this._$AB;){let s=An(e).nextSibling;An(e).remove(),e=s}}setConnected(e){this._$AM===void 0&&(this._$Cv=e,this._$AP?.(e))}},ft=class{get tagName(){return this.element.tagName}get _$AU(){return this._$AM._$AU}constructor(e,n,s,o,r){this.type=1,this._$AH=p,this._$AN=void 0,this.element=e,this.name=n,this._$AM=o,this.options=r,s.length>2||s[0]!==""||s[1]!==""?(this._$AH=Array(s.length-1).fill(new String),this.strings=s):this._$AH=p}_$AI(e,n=this,s,o){let r=this.strings,i=!1;if(r===void 0)e=ut(this,e,n,0),i=!vt(e)||e!==this._$AH&&e!==At,i&&(this._$AH=e);else{let c=e,a,l;for(e=r[0],a=0;a<r.length-1;a++)l=ut(this,c[s+a],n,a),l===At&&(l=this._$AH[a]),i||=!vt(l)||l!==this._$AH[a],l===p?e=p:e!==p&&(e+=(l??"")+r[a+1]),this._$AH[a]=l}i&&!o&&this.j(e)}j(e){e===p?this.element.removeAttribute(this.name):this.element.setAttribute(this.name,e??"")}},Ae=class extends ft{constructor(){super(...arguments),this.type=3}j(e){this.element[this.name]=e===p?void 0:e}},Me=class extends ft{constructor(){super(...arguments),this.type=4}j(e){this.element.toggleAttribute(this.name,!!e&&e!==p)}},Se=class extends ft{constructor(e,n,s,o,r){super(e,n,s,o,r),this.type=5}_$AI(e,n=this){if((e=ut(this,e,n,0)??p)===At)return;let s=this._$AH,o=e===p&&s!==p||e.capture!==s.capture||e.once!==s.once||e.passive!==s.passive,r=e!==p&&(s===p||o);o&&this.element.removeEventListener(this.name,this,s),r&&this.element.addEventListener(this.name,this,e),this._$AH=e}handleEvent(e){typeof this._$AH=="function"?this._$AH.call(this.options?.host??this.element,e):this._$AH.handleEvent(e)}},Te=class{constructor(e,n,s){this.element=e,this.type=6,this._$AN=void 0,this._$AM=n,this.options=s}get _$AU(){return this._$AM._$AU}_$AI(e){ut(this,e)}};var Eo=_e.litHtmlPolyfillSupport;Eo?.(Mt,St),(_e.litHtmlVersions??=[]).push("3.3.3");var Ce=(t,e,n)=>{let s=n?.renderBefore??e,o=s._$litPart$;if(o===void 0){let r=n?.renderBefore??null;s._$litPart$=o=new St(e.insertBefore(kt(),r),r,void 0,n??{})}return o._$AI(t),o};var Ne={light:["#ffffff","#cfdff2","#7fabdf","#2c68b4","#0b2a5b"],dark:["#14181f","#1d3252","#2f5c9b","#6ba3e8","#d3e6ff"]},Le={light:["#ffffff","#fbd9c9","#ee9a77","#c1452c","#6b1310"],dark:["#14181f","#4a2a22","#96452f","#e4795a","#ffd5c7"]};var In={light:{weight:Ne.light,against:Le.light},dark:{weight:Ne.dark,against:Le.dark}};var Ut={linear:"0 to 1",root:"square root: small weights are visible",largest:"0 to the largest weight of each row"},Pn={};function Fn(){let{theme:t}=document.documentElement.dataset,e=t==="dark"||t!=="light"&&matchMedia("(prefers-color-scheme: dark)").matches?"dark":"light";return Pn[e]??=Object.fromEntries(Object.entries(In[e]).map(([n,s])=>[n,Oo(s)])),Pn[e]}function Oo(t){let e=t.map(n=>[1,3,5].map(s=>parseInt(n.slice(s,s+2),16)));return Uint8Array.from({length:768},(n,s)=>{let o=Math.floor(s/3)/255*(t.length-1),r=Math.min(Math.floor(o),t.length-2),[i,c]=[e[r][s%3],e[r+1][s%3]];return i+(c-i)*(o-r)})}function Tt(t){return t>=1?255:t>0?Math.floor(t*256):0}function Rn(t,e,n){return e==="root"?Math.sqrt(t):e==="largest"?n>0?t/n:0:t}function Vt(){let{weight:t}=Fn(),e=new Uint32Array(256),n=new Uint8Array(e.buffer);for(let s=0;s<256;s+=1)n.set(t.subarray(3*s,3*s+3),4*s),n[4*s+3]=255;return e}function Kt(t){let{weight:e,against:n}=Fn(),s=3*Tt(Math.abs(t));return(t<0?n:e).subarray(s,s+3)}function zt(t){return`rgb(${Kt(t)})`}function Gt(t,e){return _t(e?t/e:0)}function _t(t){let e=Kt(t);return`background:rgb(${e});color:${Co(...e)?"#fff":"#000"}`}function Co(t,e,n){let s=o=>o<=10?o/3294.6:((o/255+.055)/1.055)**2.4;return .2126*s(t)+.7152*s(e)+.0722*s(n)<.179}async function X(t,e,n=performance.now()){if(Object.assign(t.state,e),t.playing)return t.waits=n;t.playing=!0;do{t.waits=null,t.began=n;try{let s=t.state.text.trim()?await t.engine.play(t.stored,t.state):null;t.state.busy=s?"":"The sentence is empty; write one.",s&&t.waits===null&&await t.replace(s),window.regard.shown.push(performance.now()-n)}catch(s){t.state.busy=s.message}n=t.waits??n}while(t.waits!==null);return t.playing=!1,t.draw()}var P={erase:"",off:"",factor:"1",warmth:"1",masks:""},F=({state:t,source:e})=>Number(t.place??e.header.chosen),B=({erase:t})=>t?t.split(".").map(Number):[],je=({off:t})=>t.split(",").filter(Boolean).map(e=>e.split(".")).map(([e,n,s])=>[e,Number(n),Number(s)]);function Qt(t){let{text:e,factor:n,warmth:s,masks:o}=t,r=B(t),i=je(t),c=Object.fromEntries(o.split(";").filter(a=>a.includes(":")).map(a=>a.split(/:(.*)/s).map(l=>l.trim())));return{source:e,changed:{...r.length?{erase:r}:{},...i.length?{off:i}:{},...Number(n)!==1?{scale:Number(n)}:{},...Number(s)!==1?{temperature:Number(s)}:{},...Object.keys(c).length?{patterns:c}:{}}}}function Ie({state:t},e){return Qt(t).changed.patterns?.[e]??""}function Jt(t,e,n,s){let{state:o,source:{header:{model:r}}}=t,i=o.masks.split(";").filter(l=>l&&!l.startsWith(`${e}:`)),c=n.replaceAll(";","").trim(),a=c===r.patterns[e]?"":c;return X(t,{masks:[...i,...a?[`${e}:${a}`]:[]].join(";")},s)}var We=/\b(sliding_window|causal_window)\((\d+)\)/;function Xt(t,{kind:e,name:n,columns:s}){let o=t.source.header.model.patterns[e],r=Ie(t,e),i=r||o,[,c,a]=i.match(We)??[],l=Math.max(t.source.answer.pieces[s==="read"?"target":s].length-1,1),h=a===void 0?l:Math.min(c==="sliding_window"?a>>1:a-1,l),d=f=>{if(f===l&&!We.test(o))return i.replace(/^(.*) & sliding_window\(\d+\)$/s,"$1").replace(/^\((.*)\)$/s,"$1");let g=`${c??"sliding_window"}(${c==="causal_window"?f+1:2*f})`;return a===void 0?`${i.includes("|")?`(${i})`:i} & ${g}`:i.replace(We,g)},w=c==="causal_window"?`${h} back`:`±${h}`,m=a===void 0?"all":w;return u`<label class="choice"
><span>Pattern, ${n.toLowerCase()}</span
><input
size="22"
placeholder=${o}
.value=${r}
@change=${f=>Jt(t,e,f.target.value)}
/></label>
<label class="choice"
><span>Window ${m}</span
><input
type="range"
min="0"
max=${l}
.value=${String(h)}
aria-label="Window, ${n.toLowerCase()}"
@input=${({target:f,timeStamp:g})=>Jt(t,e,d(+f.value),g)}
/></label>`}var No=["text",...Object.keys(P)];function D(t,e,n){let s=t?t.split(n):[];return(s.includes(e)?s.filter(o=>o!==e):[...s,e]).join(n)}function j({state:t,origin:e}){return Object.keys(P).some(n=>String(t[n])!==P[n])||e!==void 0&&t.text!==e.given.source}function R(t,e){let n=Object.fromEntries(No.map(s=>[s,t.state[s]]));return t.past.push({...n,place:F(t)}),t.follows="words",X(t,e)}function Pe(t){if(!j(t))return;let e=t.past.pop()??{...P,text:t.origin.given.source},{place:n,...s}=e;return t.follows=n??"words",X(t,s)}var Lo=12;function Yt(t){let{state:{layer:e,head:n,off:s},attention:o}=t;if(!t.engine||n==="mean")return p;let r=`${o.kind}.${e}.${n}`;return u`<button @click=${()=>R(t,{off:D(s,r,",")})}>
Switch head ${e}.${n} ${s.split(",").includes(r)?"on":"off"}
</button>`}function Bn(t){let{state:e,engine:n,source:s}=t,o=({target:r,timeStamp:i})=>{t.follows=null,X(t,{text:r.value,erase:"",place:void 0},i)};return u`<form
class="live"
@submit=${r=>{r.preventDefault(),t.set({types:!1})}}
>
<label for="sentence">${s.header.model.label}</label>
<input
id="sentence"
name="text"
.value=${e.text}
maxlength="1000"
autocomplete="off"
spellcheck="false"
list="known"
@input=${o}
/>
<datalist id="known">
${Wo(e.text,n.words).map(r=>u`<option value=${r}></option>`)}
</datalist>
<button>Close</button>
</form>`}function Dn(t){let{state:e,source:{header:{model:n}}}=t,s=j(t);return u`<details class="tweaks">
<summary>Change the model</summary>
<div class="sheet" data-apart>
${Hn(t,"factor","Scores ×","Factor of all attention scores")}
${Hn(t,"warmth","Temperature","What the logits of words are divided by")}
${n.kinds.map(o=>Xt(t,o))}
<button
type="button"
?disabled=${!s}
@click=${()=>R(t,{...P,text:t.origin.given.source})}
>
Undo all changes
</button>
</div>
</details>`}var jo=t=>(2**t).toFixed(3).replace(/\.?0+$/,"");function Hn(t,e,n,s){return u`<label class="choice"
><span>${n} ${Number(t.state[e]).toFixed(2)}</span
><input
type="range"
min="-3"
max="3"
step="0.1"
.value=${String(Math.log2(t.state[e]))}
aria-label=${s}
@input=${({target:o,timeStamp:r})=>X(t,{[e]:jo(o.value)},r)}
/></label>`}function Wo(t,e){let[,n,s]=t.match(/^(.*?)([\p{L}\p{N}']+)$/su)??[null,"",""],o=[];for(let r=0;s&&r<e.length&&o.length<Lo;r+=1)e[r].length>s.length&&e[r].toLowerCase().startsWith(s.toLowerCase())&&o.push(`${n}${e[r]}`);return o}var qn=t=>(...e)=>({_$litDirective$:t,values:e}),Zt=class{constructor(e){}get _$AU(){return this._$AM._$AU}_$AT(e,n,s){this._$Ct=e,this._$AM=n,this._$Ci=s}_$AS(e,n){return this.update(e,n)}update(e,n){return this.render(...n)}};var Io="system-ui, sans-serif",O=qn(class extends Zt{render(){}update({element:t},[e]){queueMicrotask(()=>t.isConnected&&e(t))}});function q(t,e,n){let s=window.devicePixelRatio||1,[o,r]=[Math.round(e*s),Math.round(n*s)];t.width!==o&&(t.width=o),t.height!==r&&(t.height=r),t.style.width=`${e}px`,t.style.height=`${n}px`;let i=t.getContext("2d");return i.setTransform(s,0,0,s,0,0),i.clearRect(0,0,e,n),i.textBaseline="middle",i}function at(t,e,n="normal"){t.font=`${n} ${e}px ${Io}`}function W(t){let e=getComputedStyle(t),n=s=>e.getPropertyValue(s).trim();return{ink:n("--ink"),faint:n("--faint"),line:n("--line"),accent:n("--accent"),unseen:n("--unseen"),lit:n("--followed"),paper:n("--paper")}}function Et(t,e,n){if(t.measureText(e).width<=n)return e;let[s,o]=[0,e.length];for(;s<o;){let r=s+o+1>>1;t.measureText(`${e.slice(0,r)}…`).width<=n?s=r:o=r-1}return`${e.slice(0,s)}…`}function te(t,e){for(let n of t.childNodes)n.nodeType===Node.TEXT_NODE&&(n.data=e)}function mt(t){let e=t.currentTarget.getBoundingClientRect();return[t.clientX-e.left,t.clientY-e.top]}var Fe={ArrowLeft:[0,-1],ArrowRight:[0,1],ArrowUp:[-1,0],ArrowDown:[1,0],PageUp:[-10,0],PageDown:[10,0]};function U(t,[e,n],[s,o]){let r=null;return t.key in Fe?r=[e+Fe[t.key][0],n+Fe[t.key][1]]:t.key==="Home"?r=[t.ctrlKey?0:e,0]:t.key==="End"&&(r=[t.ctrlKey?s-1:e,o-1]),r===null?null:(t.preventDefault(),[Math.min(Math.max(r[0],0),s-1),Math.min(Math.max(r[1],0),o-1)])}var Po="http://www.w3.org/2000/svg",Ot=16,Un=2;async function He(t,e){let n=t.element.querySelector(".screen"),{text:s,width:o,height:r}=Fo(n);if(e==="svg")return Re(new Blob([s],{type:"image/svg+xml"}),"regard.svg");let i=new Image;i.src=`data:image/svg+xml,${encodeURIComponent(s)}`,await i.decode();let c=new OffscreenCanvas(Un*o,Un*r);return c.getContext("2d").drawImage(i,0,0,c.width,c.height),Re(await c.convertToBlob(),"regard.png")}async function Vn(t,e){let n=new OffscreenCanvas(t.width,t.height),s=n.getContext("2d");s.fillStyle=W(t).paper,s.fillRect(0,0,n.width,n.height),s.drawImage(t,0,0),Re(await n.convertToBlob(),`${e}.png`)}function Re(t,e){let n=document.createElement("a");n.href=URL.createObjectURL(t),n.download=e,n.click(),setTimeout(()=>URL.revokeObjectURL(n.href),1e3)}function Fo(t){let e=t.querySelector(".stage"),n=e.getBoundingClientRect(),s=t.querySelector(".answer").getBoundingClientRect().top,[o,r]=[n.width+2*Ot,n.bottom-s+2*Ot],i=wt("svg",{width:o,height:r,viewBox:`0 0 ${o} ${r}`}),[c,a]=[Ot-n.left,Ot-s],l=new OffscreenCanvas(1,1).getContext("2d",{willReadFrequently:!0}),h=w=>{l.clearRect(0,0,1,1),l.fillStyle=w,l.fillRect(0,0,1,1);let[m,f,g,b]=l.getImageData(0,0,1,1).data;return b?`rgb(${m},${f},${g})`:"none"};i.append(wt("rect",{width:o,height:r,fill:h(W(e).paper)}));let d=wt("g",{transform:`translate(${Ot} ${n.top+a})`,fill:"none"});for(let w of e.querySelectorAll("path")){let{stroke:m,strokeWidth:f,strokeDasharray:g,opacity:b}=getComputedStyle(w);d.append(wt("path",{d:w.getAttribute("d"),stroke:h(m),"stroke-width":f,"stroke-dasharray":g,"stroke-linecap":"round",opacity:b}))}i.append(d);for(let w of e.querySelectorAll(".t, .n, .was, .options i")){let{x:m,y:f,width:g,height:b}=w.getBoundingClientRect(),x=h(getComputedStyle(w).backgroundColor);i.append(wt("rect",{x:m+c,y:f+a,width:g,height:b,rx:5,fill:x}))}for(let w of[t.querySelector(".answer"),...e.querySelectorAll(".note, .line, .options")])Ro(w,(m,{x:f,y:g},b)=>{let{color:x,fontFamily:v,fontSize:$,fontWeight:y}=getComputedStyle(b);l.font=`${y} ${$} ${v}`;let{fontBoundingBoxAscent:k}=l.measureText(m),E=wt("text",{x:f+c,y:g+a+k,fill:h(x),"font-family":v,"font-size":$,"font-weight":y,"text-decoration":b.closest(".was, .gone .t")?"line-through":"none"});E.textContent=m.replace(new RegExp("\\p{C}","gu"),"�"),i.append(E)});return{text:new XMLSerializer().serializeToString(i),width:o,height:r}}function wt(t,e){let n=document.createElementNS(Po,t);for(let[s,o]of Object.entries(e))n.setAttribute(s,o);return n}function Ro(t,e){let n=document.createTreeWalker(t,NodeFilter.SHOW_TEXT),s=document.createRange();for(;n.nextNode();){let o=n.currentNode;for(let{0:r,index:i}of o.data.matchAll(/\S+/g)){s.setStart(o,i),s.setEnd(o,i+r.length);let c=s.getBoundingClientRect();c.width&&e(r,c,o.parentElement)}}}function M(t,e,n,s){return u`<label class="choice"
><span>${t}</span>
<select @change=${o=>s(o.target.value)}>
${e.map(([o,r])=>u`<option
value=${o}
?selected=${String(o)===String(n)}
.selected=${String(o)===String(n)}
>
${r}
</option>`)}
</select></label
>`}function gt(t,{mean:e=!0,kinds:n=!0}={}){let{state:s,source:o}=t,[r,i]=t.attention.shape,c=l=>Array.from({length:l},(h,d)=>[d,String(d)]),a=e&&i>1?[["mean",`mean of ${i}`]]:[];return u`
${n&&o.header.attentions.length>1?M("Attention",o.header.attentions.map((l,h)=>[h,l.name]),s.kind,l=>t.set({kind:l,layer:o.header.attentions[l].shape[0]-1})):p}
${M("Layer",c(r),s.layer,l=>t.set({layer:l}))}
${M("Head",[...a,...c(i)],s.head,l=>t.set({head:l}))}
${Yt(t)}
`}function ee(t,e=!0){let{state:n}=t,s=Object.entries(Ut).filter(([o])=>e||o!=="largest");return u` ${M("Scale",s,n.scale,o=>t.set({scale:o}))} `}function Be([t,e],{place:n=o=>o,note:s=""}={}){return u`<p class="legend">
<span>${t}</span
><canvas
width="160"
height="12"
role="img"
aria-label="Colours from ${t} to ${e}"
${O(o=>{let r=o.getContext("2d");for(let i=0;i<160;i+=1)r.fillStyle=zt(n(i/159)),r.fillRect(i,0,1,12)})}
></canvas
><span>${e}</span>${s?u`<span>${s}</span>`:p}
</p>`}var Ho="(0.25 is in the middle)";function ne({state:{scale:t}},e=!0){return Be(["0",e&&t==="largest"?"the row's largest weight":"1"],{note:t==="root"?Ho:""})}function V(t){return u`<button @click=${({currentTarget:n})=>Vn(n.closest("main").querySelector(`canvas.${t}`),t)}>Save the map as PNG</button>`}function Kn(t){return t.sums||"The weights of each row sum to 1."}function ct(t){return t.exact?u`<span class="badge" title="Weights are stored as 32-bit floating-point numbers."
>exact</span
>`:u`<span class="badge" title="Weights are stored as one byte each on a square-root scale."
>rounded to 0.004 or better</span
>`}function zn(t){let e=new Float64Array(t.length),[n,s]=[-1/0,0];for(let o of t)o>n&&(n=o);for(let o=0;o<e.length;o+=1)s+=e[o]=Math.exp(t[o]-n);for(let o=0;o<e.length;o+=1)e[o]/=s;return e}function S(t,e,n=()=>!0){let s=[];for(let o=0;o<t.length;o+=1){if(s.length===e&&!(t[o]>t[s[e-1]])||!n(o))continue;let r=s.length;for(;r>0&&t[o]>t[s[r-1]];)r-=1;s.splice(r,0,o),s.length>e&&s.pop()}return s}var Bo=48;function Gn(t=document){let e=JSON.parse(t.getElementById("regard-header").textContent);return new H(e,t.getElementById("regard-arrays").textContent)}var H=class{constructor(e,n){this.header=e,this.arrays=n,this.kept=new Map}async bytes([e,n]){let s=atob(this.arrays.slice(e,e+n)),o=new Uint8Array(s.length);for(let i=0;i<s.length;i+=1)o[i]=s.charCodeAt(i);let r=new Blob([o]).stream().pipeThrough(new DecompressionStream("deflate"));return new Uint8Array(await new Response(r).arrayBuffer())}words(e){let{texts:n}=this.header;return{rows:n[e.rows],columns:n[e.columns]}}head(e,n,s){let o=`${e}/${n}/${s}`,r=this.kept.get(o);return r?this.kept.delete(o):r=s==="mean"?this.#e(e,n):this.#t(e,n,s),this.kept.set(o,r),this.kept.size>Bo&&this.kept.delete(this.kept.keys().next().value),r}async#t(e,n,s){let o=this.header.attentions[e],[,,r,i]=o.shape;if(o.exact){let l=await this.bytes(o.exact[n][s]);return new G(new Float32Array(l.buffer),r,i,!0)}let c=await this.bytes(o.bytes[n][s]),a=new Float32Array(c.length);for(let l=0;l<c.length;l+=1)a[l]=Do[c[l]];return new G(a,r,i,!1)}async#e(e,n){let s=this.header.attentions[e].shape[1],o=[];for(let i=0;i<s;i+=1)o.push(await this.#t(e,n,i));let r=new Float32Array(o[0].values.length);for(let i of o)for(let c=0;c<r.length;c+=1)r[c]+=i.values[c]/s;return new G(r,o[0].rows,o[0].columns,o[0].exact)}async thumbnails(e){let{shape:n,place:s}=this.header.attentions[e].thumbnails;return{rows:n[0],columns:n[1],bytes:await this.bytes(s)}}},Do=Float32Array.from({length:256},(t,e)=>(e/255)**2),G=class{constructor(e,n,s,o){Object.assign(this,{values:e,rows:n,columns:s,exact:o})}row(e){return this.values.subarray(e*this.columns,(e+1)*this.columns)}at(e,n){return this.values[e*this.columns+n]}entropy(e){let n=0;for(let s of this.row(e))s>0&&(n-=s*Math.log(s));return n}links(e,n,s){let o=this.row(e),r=S(o,s),i=0;for(let l of o)i+=l;let c=[],a=0;for(let l of r){if(!(o[l]>0)||a>=n*i-1e-9)break;a+=o[l],c.push({key:l,weight:o[l]})}return{links:c,hidden:Math.max(0,i-a)}}};function N(t){return t<5e-4?"under .001":Q(t)}function Q(t){return t<5e-4?"<.001":t>=.9995?"1.000":t.toFixed(3).slice(1)}function Qn(t){return Q(Math.floor(t*1e3+1e-9)/1e3)}function Jn(t){return Q(Math.floor(t*1e3+1)/1e3)}function T(t){return t>=.01||t<=0?t.toFixed(3):t.toPrecision(2)}function I(t){return t.toFixed(2).replace(/^0/,"")}function Ct(t){return t.flatMap((e,n)=>n===0?[e]:[n===t.length-1?" and ":", ",e])}function De(t,e){return u`<div class="scroll" tabindex="0" role="region" aria-label=${t}>${e}</div>`}function L(t,e,n,s=0,o=-1){return De(t,u`<table>
<thead>
<tr>
${e.map(r=>u`<th scope="col">${r}</th>`)}
</tr>
</thead>
<tbody>
${n.map((r,i)=>u`<tr class=${i===o?"chosen":""}>
${r.map((c,a)=>a===s?u`<th scope="row"><bdi>${c}</bdi></th>`:u`<td><bdi>${c}</bdi></td>`)}
</tr>`)}
</tbody>
</table>`)}var qo=44,Xn=9,Uo=110,Yn=20;function Zn(t,e){let{state:n,words:s}=t,o=se(t,e,n.row,qe(t,e));return u`
<h2>Heat map</h2>
<div class="bar">
${gt(t)} ${ee(t)} ${ct(e)} ${V("heatmap")}
</div>
<p class="hint">
${t.attention.name}. Rows: ${t.attention.row_title}. Columns:
${t.attention.column_title}.
${Kn(t.attention)}${t.attention.unwritten?" Grey cells did not exist yet.":""}
</p>
<div class="beside">
<div>
${Nt("heatmap",{role:"heat map",label:"Weights",said:o,paints:r=>Ko(t,r,e),points:r=>zo(t,r,e),keys:r=>Go(t,r,e)})}
${ne(t)}
</div>
<details class="twin" open>
<summary>The row of <bdi>${s.rows[n.row]}</bdi> as a table</summary>
${Ue(t,e)}
</details>
</div>
`}function Nt(t,{role:e,label:n,said:s,paints:o,points:r,keys:i,begins:c,ends:a}){return u`<div class="map" tabindex="-1">
<canvas
class=${t}
tabindex="0"
role="application"
aria-roledescription=${e}
aria-label="${n}; arrow keys move. ${s}"
${O(o)}
@pointermove=${r}
@click=${r}
@pointerdown=${c}
@pointerup=${a}
@pointerleave=${a}
@keydown=${i}
></canvas>
<div class="cursor" aria-hidden="true"></div>
</div>
<p class="readout" data-readout>${s}</p>`}var qe=({state:t},e)=>t.column??S(e.row(t.row),1)[0];function se(t,e,n,s){let{rows:o,columns:r}=t.words;if(ts(t,e,n,s))return`${o[n]} (${n}) could not look at ${r[s]} (${s}).`;let i=e.at(n,s),c=1;for(let a of e.row(n))a>i&&(c+=1);return`${o[n]} (${n}) looks at ${r[s]} (${s}) with weight ${T(i)}, rank ${c} of ${r.length}.`}function ts(t,e,n,s){return t.attention.unwritten&&s>n&&e.at(n,s)===0}function Lt(t,e,n=!1){let s=Math.max(t.parentElement.clientWidth-2,240),o=s<520,r=d=>d>=Xn,[i,c]=o?[80,30]:[Uo,56],a=n?c:12,l=Math.min((s-i-c)/e.columns,qo),h=window.devicePixelRatio||1;return r(l)||(l=Math.max(Math.min((s-26-a)/e.columns,Xn-.5),n?.1:1/h)),l=l>=2?Math.floor(l*h)/h:l,r(l)?{cell:l,left:i,right:c,top:78,named:!0,ratio:h}:{cell:l,left:24,right:a,top:24,named:!1,ratio:h}}function Vo(t,{scale:e},n){let s=new OffscreenCanvas(t.columns,t.rows),o=new ImageData(t.columns,t.rows),r=new Uint32Array(o.data.buffer),i=Vt();for(let c=0,a=0;c<t.rows;c+=1){let l=t.row(c),h=e==="largest"?l[S(l,1)[0]]:1;for(let d=0;d<t.columns;d+=1,a+=1)r[a]=n&&n(c,d)?0:i[Tt(Rn(l[d],e,h))]}return s.getContext("2d").putImageData(o,0,0),s}function Ko(t,e,n){let s=Lt(e,n),{cell:o,left:r,right:i,top:c,named:a}=s,[l,h]=[n.columns*o,n.rows*o],d=W(e),w=[n.rows,t.state.scale,d.unseen,l,e.parentElement.clientWidth].join();if(e.place=s,e.painted!==n||e.key!==w){e.painted=n,e.key=w;let m=q(e,r+l+i,c+h+2);m.fillStyle=d.unseen,m.fillRect(r,c,l,h),m.imageSmoothingEnabled=o*s.ratio<1,m.drawImage(Vo(n,t.state,(f,g)=>ts(t,n,f,g)),r,c,l,h),m.strokeStyle=d.line,m.strokeRect(r-.5,c-.5,l+1,h+1),a?jt(m,t.words,s,d):Wt(m,n,s,d)}lt(e,t.state.row,qe(t,n))}function jt(t,{rows:e,columns:n},{cell:s,left:o,right:r,top:i},c){at(t,Math.min(Math.max(s*.62,8),13)),t.fillStyle=c.ink,t.textAlign="right",e.forEach((l,h)=>t.fillText(Et(t,l,o-8),o-5,i+(h+.5)*s)),t.textAlign="left";let a=o+n.length*s+r;n.forEach((l,h)=>{let d=Math.SQRT2*(a-o-(h+.5)*s)-8;t.save(),t.translate(o+(h+.5)*s,i-5),t.rotate(-Math.PI/4),t.fillText(Et(t,l,Math.min(96,d)),0,0),t.restore()})}function Wt(t,e,{cell:n,left:s,top:o},r,i=1){at(t,10),t.fillStyle=r.faint;let c=[10,20,50,100,200,500,1e3].find(a=>a*n>=40)??5e3;t.textAlign="center";for(let a=0;a<e.columns;a+=c)t.fillText(String(a*i),s+(a+.5)*n,o-8);t.textAlign="right";for(let a=0;a<e.rows;a+=c)t.fillText(String(a*i),s-3,o+(a+.5)*n)}function lt(t,e,n){let{cell:s,left:o,top:r}=t.place,{style:i}=t.parentElement.querySelector(".cursor"),c=Math.max(s,6),[a,l]=[o+(n+.5)*s,r+(e+.5)*s];i.transform=`translate(${a-c/2}px, ${l-c/2}px)`,i.width=`${c}px`,i.height=`${c}px`}function $t(t,{rows:e,columns:n}){let{cell:s,left:o,top:r}=t.currentTarget.place,[i,c]=mt(t),[a,l]=[Math.floor((c-r)/s),Math.floor((i-o)/s)];return a>=0&&l>=0&&a<e&&l<n?[a,l]:[]}function zo(t,e,n){let s=e.currentTarget,[o,r]=$t(e,n);o!==void 0&&(lt(s,o,r),e.type==="click"?t.set({row:o,column:r,said:se(t,n,o,r)}):te(s.parentElement.nextElementSibling,se(t,n,o,r)))}function Go(t,e,n){let{row:s}=t.state,o=U(e,[s,qe(t,n)],[n.rows,n.columns]);o!==null&&t.set({row:o[0],column:o[1],said:se(t,n,...o)})}function Ue(t,e){let{row:n}=t.state,{columns:s}=t.words,o=e.row(n),r=S(o,Yn),i=Math.max(0,o.reduce((l,h)=>l+h,0)-r.reduce((l,h)=>l+o[h],0)),c=s.length-Yn,a=c>0?`The other ${c} keys together: ${T(i)}. `:"";return u`${L("The largest weights of the row",["Rank","Place","Word","Weight"],r.map((l,h)=>[h+1,l,s[l],T(o[l])]),2)}
<p class="hint">${a}Entropy of the row: ${e.entropy(n).toFixed(3)} nats.</p>`}function os(t,e){let{state:n,source:s}=t,{second:o}=s.header,r=rs(t),[i,c]=r.attention?r.attention.shape:[0,0],a=[];for(let h=0;h<i;h+=1){r.outside&&c>1&&a.push([`${h}.mean`,`layer ${h}, mean of ${c}`]);for(let d=0;d<c;d+=1)a.push([`${h}.${d}`,`layer ${h}, head ${d}`])}let l=t.compared?.key===Ve(t)&&t.compared.source===s?t.compared:null;return!l&&r.attention&&Qo(t,e,r),u`
<h2>${o?"Compare":"Compare two heads"}</h2>
<div class="bar">
${gt(t)} ${ct(e)}
${o?M("With",[["other",o.said],["own","another head of the same"]],r.outside?"other":"own",h=>t.set({against:h,other:void 0})):p}
${a.length?M(o?"Its head":"With",a,`${r.layer}.${r.head}`,h=>t.set({other:h.split(".")})):p}
${l?[ct(l.second),V("difference")]:p}
</div>
${r.outside?u`<p class="hint">
The page shows: <bdi>${s.header.title}</bdi>; the other is:
<bdi>${o.header.title}</bdi>
${o.header.notes.map(h=>u`<bdi>${h}</bdi> `)}
</p>`:p}
<p class="hint">
Blue: the first head has more weight there; red: the second. Beside each row its
Jensen-Shannon distance, from 0 (equal) to 1 (no key in common).
</p>
${r.attention?l?Xo(t,l):u`<p class="hint">Comparing…</p>`:u`<p class="hint">The other has no ${t.attention.name.toLowerCase()}.</p>`}
${er(t,r)?nr(s.header,o):p}
`}function rs(t){let{header:e}=t.source,n=!!e.second&&t.state.against!=="own",s=n?e.second.header.attentions:e.attentions,o=n?s.findIndex(({name:d})=>d===t.attention.name):t.state.kind,r=s[o];if(!r)return{outside:n,attention:r,kind:o};let[i,c]=r.shape,[a,l]=t.state.other??(n?[t.state.layer,t.state.head]:[0,0]),h=(d,w)=>Math.min(Math.max(Math.trunc(Number(d))||0,0),w-1);return{outside:n,attention:r,kind:o,layer:h(a,i),head:n&&l==="mean"&&c>1?"mean":h(l,c)}}function Ve(t){let{outside:e,kind:n,layer:s,head:o}=rs(t);return[t.state.kind,t.state.layer,t.state.head,e,n,s,o].join("/")}async function Qo(t,e,{outside:n,attention:s,kind:o,layer:r,head:i}){let c=Ve(t),{source:a}=t,l=n?a.second??=new H(a.header.second.header,a.arrays):a,h=await l.head(o,r,i);if(c!==Ve(t)||t.source!==a||t.state.view!=="compare")return;let{matched:d}=a.header.second??{},w=$=>Array.from({length:$},(y,k)=>k),[m,f]=[[t.attention.rows,e.rows],[t.attention.columns,e.columns]].map(([$,y])=>n?d[$]:[w(y),w(y)]),g=[es(e,m[0],f[0]),es(h,m[1],f[1])],b=g[0].weights.values.map(($,y)=>$-g[1].weights.values[y]),x=b.reduce(($,y)=>Math.max($,Math.abs(y)),0),v=m[0].map(($,y)=>Jo(...g.map(({weights:k,rest:E})=>[...k.row(y),E[y]])));t.compared={key:c,source:a,first:g[0].weights,second:g[1].weights,values:b,largest:x,distances:v,outside:n,places:m[0],hidden:g.map(({rest:$})=>is($)),left:e.rows-m[0].length,words:{rows:Ke(t.words.rows,l.words(s).rows,m),columns:Ke(t.words.columns,l.words(s).columns,f)}},t.draw()}function Ke(t,e,[n,s]){return n.map((o,r)=>t[o]===e[s[r]]?t[o]:`${t[o]} / ${e[s[r]]}`)}function es(t,e,n){let s=new Float32Array(e.length*n.length),o=e.map((r,i)=>{let c=t.row(r),a=0;for(let l of c)a+=l;return n.forEach((l,h)=>{s[i*n.length+h]=c[l],a-=c[l]}),Math.max(a,0)});return{weights:new G(s,e.length,n.length,t.exact),rest:o}}function is(t){return t.length?t.reduce((e,n)=>e+n,0)/t.length:0}function Jo(t,e){let n=0;for(let s=0;s<t.length;s+=1){let o=(t[s]+e[s])/2;t[s]>0&&(n+=t[s]*Math.log2(t[s]/o)/2),e[s]>0&&(n+=e[s]*Math.log2(e[s]/o)/2)}return Math.sqrt(Math.max(n,0))}function Xo(t,e){if(!e.first.rows||!e.first.columns)return u`<p class="hint">
The two have no words in common there, so there is nothing to compare.
</p>`;let n=ss(t,e),s=e.largest.toFixed(3);return u` <p class="summary" data-distance>
Mean distance of the rows: ${is(e.distances).toFixed(3)}; the largest difference of a
weight is ${e.largest.toFixed(3)}.
</p>
${e.outside?u`<p class="hint" data-hidden>
Hidden: ${ns(e.hidden[0])} of the first and ${ns(e.hidden[1])} of the
second are on words without a partner in the other; they count as one more word.
${Yo(e.left)}
</p>`:p}
<div class="beside">
<div>
${Nt("difference",{role:"map of differences",label:"Differences",said:n,paints:o=>sr(t,o,e),points:o=>o.type==="click"&&or(t,o,e),keys:o=>{let r=U(o,It(t,e),[e.first.rows,e.first.columns]);r&&t.set({pair:r}).then(()=>t.set({said:ss(t,e)}))}})}
${Be([`the second has ${s} more`,`the first has ${s} more`],{place:o=>2*o-1})}
</div>
<details class="twin" open>
<summary>
The row of <bdi>${e.words.rows[It(t,e)[0]]}</bdi> as a table
</summary>
${tr(t,e)}
</details>
</div>`}var ns=t=>`${(100*t).toFixed(0)} %`;function Yo(t){return t?`${t} ${t===1?"row of the first has":"rows of the first have"} no partner.`:""}function It({state:t},{first:e,values:n,places:s}){if(t.pair){let[i,c]=t.pair;return[Math.min(i,e.rows-1),Math.min(c,e.columns-1)]}let o=Math.max(s.indexOf(t.row),0),r=n.slice(o*e.columns,(o+1)*e.columns).map(Math.abs);return[o,S(r,1)[0]]}function ss(t,e){let{first:n,second:s,distances:o,words:r}=e,[i,c]=It(t,e),[a,l]=[n,s].map(h=>T(h.at(i,c)));return`${r.rows[i]} looks at ${r.columns[c]} with ${a} in the first head and ${l} in the second; distance of the row ${o[i].toFixed(3)}.`}var Zo=t=>`${t<0?"−":""}${T(Math.abs(t))}`;function tr(t,e){let[n]=It(t,e),{first:s,second:o,words:r}=e;return L("The row as a table",["Word","First","Second","Difference"],r.columns.slice(0,100).map((i,c)=>[i,T(s.at(n,c)),T(o.at(n,c)),Zo(s.at(n,c)-o.at(n,c))]))}function er({engine:t,source:{header:e}},{outside:n}){let{texts:s,changes:o,second:r}=e;return n&&!t&&s.target&&o&&r.header.changes}function nr(t,e){let n=(e.matched.target??[[],[]])[0].map((r,i)=>[r,e.matched.target[1][i]]),s=[t.texts.target,e.header.texts.target],o=(r,i)=>Ke(...s,[[r],[i]])[0];return u`<details class="twin" open data-written>
<summary>The probability of each written word</summary>
${L("Probabilities of written words",["Word","First","Second"],n.map(([r,i])=>[o(r,i),T(t.changes.unchanged.probabilities[r]),T(e.header.changes.unchanged.probabilities[i])]))}
</details>`}function sr(t,e,n){let{first:s,values:o,largest:r,distances:i,words:c}=n,a=W(e),l=Lt(e,s,!0),{cell:h,left:d,right:w,top:m,named:f}=l,[g,b]=[h*s.columns,h*s.rows],x=q(e,d+g+w,m+b+2);e.place=l;let v=new OffscreenCanvas(s.columns,s.rows),$=new ImageData(s.columns,s.rows);o.forEach((y,k)=>{$.data.set([...Kt(r?y/r:0),255],4*k)}),v.getContext("2d").putImageData($,0,0),x.imageSmoothingEnabled=h<1,x.drawImage(v,d,m,g,b),f?jt(x,c,l,a):Wt(x,s,l,a),x.fillStyle=a.accent,i.forEach((y,k)=>x.fillRect(d+g+4,m+k*h,(w-6)*y,Math.max(h-1,1))),lt(e,...It(t,n))}function or(t,e,{first:n}){let[s,o]=$t(e,n);s!==void 0&&t.set({pair:[s,o]})}var oe=60,re=3,rr=1,ir=["<begin>","<s>"],ls=["<end>","</s>","<|endoftext|>"],Y=t=>/^(<[^<>]+>|\[[A-Z]+\])$/.test(t);function Pt({engine:t,source:e}){let{texts:n,changes:s}=e.header;if(n.target)return"written";if(!t)return s?{words:"next",masked:"masked",vectors:"vectors"}[s.follows]:"looks";let{follows:o,logits:r,target:i,likeliest:c}=e.answer;return o!==void 0?"next":r?i.length&&!c.length?"sorted":"masked":"vectors"}function Ft(t,{logits:e,ids:n,probabilities:s}){if(t==="sorted")return s;let o=n.source.length,r=t==="next"?o-1:n.source.indexOf(rr),i=e.length/o;return r<0?null:zn(e.subarray(r*i,(r+1)*i))}function as(t,{likeliest:e,target:n,probabilities:s}){return t==="next"?e.at(-1):t==="masked"?e[0]??[]:S(s,re).map(o=>[n[o],s[o]])}function hs(t){if(!t.attention)return null;let e=Pt(t),n={kind:e,...ar[e](t,e)},s=[n.without?"depends":null,n.looks?"looks":null].filter(Boolean);return{...n,modes:s,by:s.includes(t.state.by)?t.state.by:s[0]}}var ar={written:cr,next:ze,sorted:ze,masked:ze,vectors:hr,looks:dr};function Ge({source:t,engine:e},n){let{model:s}=t.header;return e?`${n} of ${s.parameters.toLocaleString("en")} parameters runs here.`:""}function cr(t){let{engine:e,source:n,origin:s}=t,{texts:o,changes:r,explained:i,attentions:c}=n.header,a=Math.min(F(t),o.target.length-1),l=c.find(({rows:m,columns:f})=>m==="target"&&f==="source"),h=i[a]?.find(({lens:m})=>m==="attention"),d=m=>{let f=r?.erased[m];return f&&{p:f.probabilities[a],instead:f.likeliest[a]?.[0][0]}},w=h&&{values:h.source.map(([,m])=>m),says:"the heads"};return e&&l?w={values:us(l,a),says:"the heads"}:!w&&t.attention===l&&(w=Qe(t,a)),{orientation:e?`${Ge(t,"A translator")} Press a word of the translation to see what it depends on. Press a word of the sentence to erase it.`:"Press a word of the translation to see what it depends on. Press a word of the sentence to see what is written without it.",given:{label:"Sentence",words:(n.base??n).header.texts.source,...Je(t)},written:{label:"Translation",words:o.target,before:s?.header.texts.target??o.target,press:m=>t.set({place:m,row:m})},chosen:a,word:o.target[a],own:(e?n.answer:r?.unchanged)?.probabilities[a],without:r&&d,waits:!!e&&!i[a],looks:w}}var cs={next:["A language model","Press a next word to see what it depends on. Press a word of the text to erase it."],sorted:["A classifier","Press a class to see what it depends on. Press a word of the text to erase it."],masked:["A model","Press a word to hide it. The model then guesses what stands there."]},lr={next:"This page holds what a language model expects after this text.",masked:"A word is hidden here, and the page holds what a model guesses. Of several it shows the first."};function ze(t,e){let{engine:n,source:s,state:o}=t,{texts:r,changes:i}=s.header,c=n?as(e,s.answer):as(e,{likeliest:i.unchanged.likeliest}).slice(0,1),a=Math.min(o.pick,Math.max(c.length-1,0)),l=e==="next"?-1:0,h=w=>{if(n){let f=s.probed?.get(w);return f&&{p:f.p[a],instead:f.instead}}let m=i.erased[w];return m&&{p:m.probabilities.at(l),instead:m.likeliest.at(l)?.[0][0]}},d=r.text.length-1;return{orientation:n?`${Ge(t,cs[e][0])} ${cs[e][1]}`:`${lr[e]} Press a word to see what changes without it.`,given:{label:"Text",words:(s.base??s).header.texts.text,...Je(t)},options:c,optionsLabel:{next:"Next word",sorted:"Class",masked:"Guess"}[e],chosen:a,word:c[a]?.[0],own:c[a]?.[1],without:c.length?h:null,relative:e!=="sorted",waits:!!n&&c.length>0&&!s.probed,looks:e==="next"?ds(t,d):null}}function hr(t){let{engine:e,source:n,state:s}=t,{texts:o,changes:r}=n.header,i=Math.min(s.row,o.text.length-1),c=a=>{let l=r.erased[a];return l&&a!==i?{p:l.similarities[i],instead:null}:void 0};return{orientation:e?`${Ge(t,"An encoder")} Press a word to see what its vector depends on. Press it again to erase it.`:"An encoder reads this text and gives each word a vector. Press a word to see what its vector depends on.",given:{label:"Text",words:(n.base??n).header.texts.text,...Je(t),press:a=>a===i&&e?fs(t,a):t.set({row:a}),can:()=>!0},chosen:i,arcs:!0,word:o.text[i],own:1,without:c,waits:!!e&&!Object.keys(r.erased).length,looks:ds(t,i)}}function dr(t){let{state:e,attention:n}=t,{rows:s,columns:o}=t.words,r=n.rows===n.columns,i=c=>t.set({row:c});return{orientation:"This page holds attention weights without their model. Press a word to see where it looks.",given:{label:r?"Words":"Keys",words:o,gone:[],can:()=>r,press:i},written:r?null:{label:"Queries",words:s,before:s,press:i},chosen:e.row,arcs:r,word:s[e.row],without:null,looks:Qe(t,e.row)}}function ds(t,e){let[n]=t.source.header.attentions;return t.engine?{values:us(n,e),says:"the heads"}:Qe(t,e)}function Qe({weights:t,state:e,attention:n},s){if(!t)return null;let o=n.shape[1],r=e.head==="mean"?`the mean of ${o} heads of layer ${e.layer}`:`head ${e.layer}.${e.head}`;return{values:[...t.row(Math.min(s,t.rows-1))],says:r,one:!0}}function us({shape:[t,e,n,s],weights:o},r){let i=new Array(s).fill(0);for(let c=0;c<t*e;c+=1)for(let a=0,l=(c*n+r)*s;a<s;a+=1)i[a]+=o[l+a]/(t*e);return i}function Je(t){let{engine:e,source:n,state:s}=t;return e?{gone:B(s),can:o=>n.answer.erasable.includes(o),press:o=>fs(t,o)}:{gone:[],pointed:s.changed,can:o=>!!n.header.changes?.erased[o],press:o=>t.set({changed:s.changed===o?void 0:o})}}var fs=(t,e)=>R(t,{erase:D(t.state.erase,String(e),".")});function ie({hot:t},{given:{pointed:e,gone:n},arcs:s,chosen:o}){let r=t??e??null;return n.includes(r)||s&&r===o?null:r}function Xe(t,e){if(e<=oe)return[0,e];let n=Math.min(Math.max(t-oe/2,0),e-oe);return[n,n+oe]}var _=t=>ir.includes(t)?"beginning":ls.includes(t)?"end":t,A=(t,e=!1)=>u`<em class=${e?"c":""}
><bdi>${ls.includes(t)?"the end":_(t)}</bdi></em
>`;function ms({by:t,given:e,own:n,without:s,relative:o,kind:r,looks:i,chosen:c,arcs:a}){if(t==="looks"){let l=i.values.map(d=>d<.03?0:d),h=Math.max(...l.filter((d,w)=>!a||w!==c),.01);return l.map((d,w)=>a&&w===c?0:.85*Math.min(d/h,1))}return e.words.map((l,h)=>{let d=e.gone.includes(h)?null:s?.(h);if(!d)return 0;let w=r==="vectors"?1-d.p:o?1-d.p/n:n-d.p;return w<.02?0:Math.min(w,1)})}function ae(t,e){let n=Array.from({length:t.length+1},()=>new Uint16Array(e.length+1)),s=[];for(let o=t.length-1;o>=0;o-=1)for(let r=e.length-1;r>=0;r-=1)n[o][r]=t[o]===e[r]?n[o+1][r+1]+1:Math.max(n[o+1][r],n[o][r+1]);for(let[o,r]=[0,0];o<t.length&&r<e.length;)t[o]===e[r]?s.push([o++,r++]):n[o+1][r]>=n[o][r+1]?o+=1:r+=1;return s}function Z(t,e){let n=[],[s,o]=[0,0];for(let[r,i]of[...ae(t,e),[t.length,e.length]])(r>s||i>o)&&n.push({before:t.slice(s,r),after:e.slice(o,i),from:s,to:o}),[s,o]=[r+1,i+1];return n}function ce(t,e){return Z(t.split(" "),e.split(" ")).map(n=>({before:n.before.join(" ").replace(/[.,!?]$/,""),after:n.after.join(" ").replace(/[.,!?]$/,"")}))}function tt(t,e,n){let s=ae(e,n).find(([i])=>i===t);if(s)return s[1];let o=Z(e,n).find(({before:i,from:c})=>t>=c&&t<c+i.length);if(!o)return 0;let r=Math.min(t-o.from,Math.max(o.after.length-1,0));return Math.min(o.to+r,n.length-1)}function le(t){let e=t.findLastIndex(n=>new RegExp("\\p{L}","u").test(n)&&!/^(<.*>|\[[A-Z]+\])$/.test(n));return Math.max(e,0)}var ur=.98,fr=2,mr=4,wr=2,gr=2,gs=40,$r=160;function ht(t){let{tried:e,origin:n}=t;return e?.origin===n&&(j(t)||e.asked===Rt(t))?e.list:null}function Rt(t){let e=Pt(t);return e==="vectors"?t.state.row:e==="written"?j(t)?t.origin.header.chosen:F(t):j(t)?0:t.state.pick}async function Ye(t,e,n,s){let o=Ft(n,e.answer),r=new Map;if(o){let i=S(o,re),c=B(e.given.erase?{erase:e.given.erase.join(".")}:{});for(let a of e.answer.erasable.slice(-gs)){if(c.includes(a))continue;let l=await t.engine.ask("run",{...e.given,erase:[...c,a]});if(s())return;let h=Ft(n,l);r.set(a,{p:i.map(d=>h[d]),instead:$s(n,l)})}}e.probed=r}function $s(t,{likeliest:e,target:n,probabilities:s}){return t==="sorted"?n[S(s,1)[0]]:(t==="next"?e.at(-1):e[0])[0][0]}async function bs(t,e,n){let{origin:s}=t;if(e==="vectors")return Or(t,s);let o=e==="written"?null:Ft(e,s.answer);if(e==="masked"&&!o)return Er(t,s,n);let r=e==="written"?await br(t,s):await xr(t,s,e,o,n);if(!r||n())return[];let i=r.falls.sort(([,h],[,d])=>h-d),c=await kr(t,s,r,i.slice(0,wr),n),a=n()?null:await Tr(t,s,r,n),l=i.slice(0,c?1:2).map(([h,d])=>Sr(t,s,r,h,d));return[c,...l,a].filter(Boolean)}async function br(t,e){let n=Math.min(Rt(t),e.answer.texts.target.length-1),{given:s,header:o}=e;if(!o.explained[n]){let i=await t.engine.ask("lens",{...s,place:n,others:e.others(n)});if(!i)return null;e.explain(n,i),o.explained[n]??=[]}let r=e.answer.texts.target;return{word:r[n],own:e.answer.probabilities[n],falls:Object.entries(o.changes.erased).map(([i,{probabilities:c}])=>[Number(i),c[n]]),ask:{against:e.answer.ids.target},p:({against:i})=>i.probabilities[n],now:({texts:i})=>i.target[tt(n,r,i.target)],cost:i=>pr(r,i),whole:!0}}function pr(t,{texts:{target:e},probabilities:n}){let s=Z(t,e);return e.length!==t.length||s.length>gr||Math.min(...n)<ur||!s.every(({before:r,after:i})=>i.every((c,a)=>he(c)===he(r[a]??"")))?1/0:s.reduce((r,{after:i})=>r+i.length,0)}function yr(t,e){let n=t.findIndex((s,o)=>s!==e[o]);return n>=0&&t[n]<e[n]}async function xr(t,e,n,s,o){if(e.probed||await Ye(t,e,n,o),!e.probed)return null;let r=Rt(t),i=S(s,re)[r],{likeliest:c,target:a}=e.answer,l=n==="next"?c.at(-1):c[0];return{word:n==="sorted"?a[i]:l[r][0],own:s[i],falls:[...e.probed].map(([h,{p:d}])=>[h,d[r]]),ask:{},p:h=>Ft(n,h)[i],now:h=>$s(n,h),cost:()=>0}}async function kr(t,e,n,s,o){if(!t.engine.words.length)return null;let r=null,{texts:i}=e.answer,c=i.source??i.text;for(let[a]of s){let l=c[a];if(new RegExp("^\\p{L}+$","u").test(l))for(let h of await vr(t,n.whole?c:[l],n.whole?a:0)){let d=Mr(e,a,h);if(o())return null;if(!d||!Ar(h,l))continue;let w=await t.engine.ask("run",{...e.given,source:d,...n.ask}),m=n.p(w),f=n.cost(w),g=n.now(w),b={p:m,text:d,word:l,other:h,now:g,rank:[g===n.word?1:0,f,m]};if(f<1/0&&(!r||yr(b.rank,r.rank))&&(r=b),n.whole&&r&&r.now!==n.word&&r.rank[1]<=fr)return ws(t,e,n,r)}}return r&&ws(t,e,n,r)}async function vr(t,e,n){let s=e.map((r,i)=>[r,Math.abs(i-n)]).filter(([r])=>new RegExp("^\\p{L}+$","u").test(r)&&r.length>=mr).sort(([,r],[,i])=>r-i),o=new Set;for(let[r]of s)for(let i of await t.engine.ask("near",{word:r}))o.add(i);return o}function ws(t,e,n,{text:s,word:o,other:r,now:i,p:c}){return{title:`“${o}” → “${r}”`,says:tn(n,i,c),on:a=>a.text===s,press:()=>R(t,{text:t.state.text===s?e.given.source:s})}}function Ar(t,e){return t.toLowerCase()!==e.toLowerCase()&&he(t)===he(e)}var he=t=>t.charAt(0)!==t.charAt(0).toLowerCase();function Mr({given:t,answer:{texts:e}},n,s){let{source:o}=t,r=(e.source??e.text).slice(0,n+1),i=0;for(let c of r.filter(a=>!Y(a))){let a=o.indexOf(c,i);if(a<0)return null;i=a+c.length}return o.slice(0,i-r.at(-1).length)+s+o.slice(i)}function Sr(t,e,n,s,o){let{texts:r}=e.answer;return{title:`Erase “${_((r.source??r.text)[s])}”`,says:tn(n,n.word,o),...Ze(t,s)}}var Ze=(t,e)=>({on:n=>B(n).includes(e),press:()=>R(t,{erase:D(t.state.erase,String(e),".")})});async function Tr(t,e,n,s){let o=e.header.attentions.flatMap(({kind:l,shape:[h,d]})=>Array.from({length:h*d},(w,m)=>[l,Math.floor(m/d),m%d]));if(o.length>$r)return null;let r=null;for(let l of o){let h=await t.engine.ask("run",{...e.given,off:[l],...n.ask});if(s())return null;let d=n.p(h);(!r||d<r.p)&&(r={p:d,head:l,now:n.now(h)})}let i=r.head.join("."),[c,...a]=r.head;return{title:`Switch off head ${a.join(".")}`,says:`${c==="text"?"":`${_r[c]}: `}${tn(n,r.now,r.p)}`,on:({off:l})=>l.split(",").includes(i),press:()=>R(t,{off:D(t.state.off,i,",")})}}var _r={cross:"cross-attention",encoder:"in the encoder",decoder:"in the decoder"};function tn({word:t,own:e},n,s){if(n!==t)return`“${_(t)}” becomes “${_(n)}”`;let[o,r]=[e,s].map(N),i=s<e?"falls to":"rises to";return`“${_(t)}” ${o===r?"stays at":i} ${r}`}async function Er(t,e,n){let s=[];for(let o of e.answer.erasable.slice(-gs)){let r=e.answer.texts.text[o];if(!new RegExp("\\p{L}","u").test(r))continue;let{likeliest:i}=await t.engine.ask("run",{...e.given,erase:[o]});if(n())return[];s.push({at:o,word:r,guess:i[0][0]})}return s.sort((o,r)=>r.guess[1]-o.guess[1]).slice(0,3).map(({at:o,word:r,guess:[i,c]})=>({title:`Hide “${r}”`,says:`the model guesses “${i}”, ${N(c)}`,...Ze(t,o)}))}function Or(t,e){let{header:n}=e,s=Math.min(t.state.row,n.texts.text.length-1),o=n.texts.text[s];return[...Object.entries(n.changes.erased).map(([c,{similarities:a}])=>[Number(c),a[s]]).filter(([c])=>c!==s).sort(([,c],[,a])=>c-a).slice(0,2).map(([c,a])=>({title:`Erase “${_(n.texts.text[c])}”`,says:`the vector of “${_(o)}” changes: cosine ${I(a)}`,...Ze(t,c)})),Cr(t,n,s)]}function Cr(t,{attentions:[{shape:e,weights:n}],texts:{text:s}},o){let[r,i,c,a]=e,l={weight:-1};for(let w=0;w<r*i;w+=1)for(let m=0;m<a;m+=1){let f=n[(w*c+o)*a+m];f>l.weight&&m!==o&&!Y(s[m])&&(l={weight:f,head:w,at:m})}let[h,d]=[Math.floor(l.head/i),l.head%i];return{title:`Open head ${h}.${d}`,says:`there “${_(s[o])}” looks most at “${s[l.at]}”`,on:({view:w,layer:m,head:f})=>w==="map"&&m===h&&f===d,press:()=>t.set({view:"map",layer:h,head:d})}}var ps=48,et=class extends H{constructor(e,n,s,o=null){let{header:r,arrays:i}=e,{model:c}=r,a=c.kinds.map(m=>new en(m,s.attention[m.kind])),{texts:l,text:h,finished:d}=s,w=l.target?`${n.source} → ${h}`:n.source;super({...r,title:w,texts:l,attentions:a,explained:{},written:c.written,changes:c.follows&&Lr(c,s,o?.answer??s)},i),Object.assign(this,{stored:e,given:n,answer:s,base:o}),this.header.chosen=this.#t(),o&&(Object.assign(this,{second:o}).header.second={said:"the model as trained",header:o.header,matched:Nr(l,o.answer.texts)}),d===!1&&(this.header.notes=[...r.notes,"The model does not end this text."])}#t(){let{model:e,texts:n}=this.header;if(e.written!=="target")return le(n.text);if(e.asked?.source===this.given.source&&n.target[e.asked.place]===e.asked.word)return e.asked.place;let s=n.target.flatMap((o,r)=>e.pronouns.includes(o.toLowerCase())?[r]:[]);return s.length===1?s[0]:this.#e()}#e(){let{probabilities:e}=this.answer,n=Math.max(e.length-1,1);return e.slice(0,n).reduce((s,o,r,i)=>o<i[s]?r:s,0)}others(e){let{model:n,texts:s}=this.header,{asked:o}=n;return o?.place===e&&o.word===s.target?.[e]&&o.source===this.given.source?o.others:null}explain(e,{lenses:n,changes:s}){let{header:o,answer:r}=this;n.length&&(o.explained[e]=n),o.changes&&s.forEach((i,c)=>o.changes.erased[r.erasable[c]]={...ys,...i})}measure(e,{kinds:n,...s}){this.effects={place:e,...s};for(let o of this.header.attentions){let{heads:r,layers:i}=n[o.kind]??{};o.layers=i,r?o.statistics.effect=r:delete o.statistics.effect}}head(e,n,s){let{shape:[,o,r,i],weights:c}=this.header.attentions[e],a=r*i,l=new Float32Array(a);for(let h=s==="mean"?0:s,d=s==="mean"?o:s+1;h<d;h+=1)for(let w=0,m=(n*o+h)*a;w<a;w+=1)l[w]+=c[m+w]/(s==="mean"?o:1);return new G(l,r,i,!0)}async thumbnails(e){let{shape:[n,s,o,r],weights:i}=this.header.attentions[e],[c,a]=[Math.min(o,ps),Math.min(r,ps)],l=new Uint8Array(n*s*c*a);for(let h=0;h<i.length;h+=1){let d=h%r,w=Math.floor(h/r)%o,f=(Math.floor(h/r/o)*c+Math.floor(w*c/o))*a+Math.floor(d*a/r);l[f]=Math.max(l[f],Math.round(255*Math.sqrt(i[h])))}return await new Promise(requestAnimationFrame),{rows:c,columns:a,bytes:l}}};function Nr(t,e){return Object.fromEntries(Object.entries(t).map(([n,s])=>{let o=ae(s,e[n]);return[n,[0,1].map(r=>o.map(i=>i[r]))]}))}var ys={probabilities:[],likeliest:[],translation:null,similarities:[]};function Lr({follows:t},e,n){let s=r=>({...ys,...r,translation:r.finished===void 0?[]:r.texts.target.slice(0,-1)}),o={similarities:n.texts[n.texts.target?"target":"text"].map(()=>1)};return{follows:t,unchanged:{...s(n),...o},now:e===n?null:{...s(e),...e.against},erased:{}}}var en=class{constructor(e,{shape:n,weights:s}){Object.assign(this,{links:{},says:"",...e,shape:n,weights:s})}get sums(){let[,,,e]=this.shape,{weights:n}=this;for(let s=0;s<n.length;s+=e)if(Math.abs(n.subarray(s,s+e).reduce((o,r)=>o+r,0)-1)>.01)return"Rows of words that may look at no word sum to 0.";return""}get statistics(){return this.measured??=this.#t()}#t(){let[e,n,s,o]=this.shape,r=[this.rows,this.columns].sort().join(),i=this.rows===this.columns||r==="read,target",c={entropy:[],first:[],received:[],...i?{distance:[]}:{}};for(let a=0;a<e;a+=1){for(let l of Object.values(c))l.push([]);for(let l=0;l<n;l+=1){let h=new Float64Array(o),[d,w,m]=[0,0,0];for(let f=0;f<s;f+=1)for(let g=0;g<o;g+=1){let b=this.weights[((a*n+l)*s+f)*o+g];b>0&&(d-=b*Math.log(b)/s),g===0&&(w+=b/s),m+=b*Math.abs(f-g)/s,h[g]+=b/s}for(let[f,g]of Object.entries({entropy:d,first:w,distance:m,received:Math.max(...h)}))c[f]?.[a].push(g)}}return c}};var jr={lenses:[],changes:[]};async function bt(t){let{source:e}=t,{header:n}=e,s=F(t);if(!(e instanceof et)||t.asking)return;if(n.explained[s])return xs(t);let o=t.began??performance.now();t.asking=e;let r=jr;try{r=await t.engine.ask("lens",{...e.given,place:s,others:e.others(s)})}catch(i){t.state.busy=i.message}if(t.asking=null,!t.playing)return t.source!==e||!r?bt(t):(e.explain(s,r),n.explained[s]??=[],t.began=null,await t.draw(),window.regard.coloured.push(performance.now()-o),xs(t))}async function xs(t){let{source:e,origin:n}=t,s=Pt(t),o=ks(t),r=Rt(t),i=ht(t)!==null,c=s!=="written"&&s!=="vectors"&&!e.probed;if(t.asking||t.playing||i&&!c)return;t.asking=e;let a=()=>t.source!==e||t.playing||ks(t)!==o;try{if(c&&(await Ye(t,e,s,a),a()||await t.draw()),!a()&&!i){let h=await bs(t,s,a);a()||(t.tried={origin:n,asked:r,list:h})}}catch(h){t.state.busy=h.message,i||(t.tried={origin:n,asked:r,list:[]})}let l=a();t.asking=null,!t.playing&&(await t.draw(),l&&await bt(t))}var ks=({state:t,source:e})=>[e.given.source,t.place??e.header.chosen,t.pick,t.row].join("/");async function vs(t){let{source:e}=t,n=F(t);if(!(e instanceof et)||e.effects?.place===n||(e.effects&&e.measure(null,{kinds:{}}),t.asking||t.playing))return;t.asking=e;let s={kinds:{}};try{s=await t.engine.ask("effects",{...e.given,place:n,others:e.others(n)})}catch(o){t.state.busy=o.message}t.asking=null,s&&e.measure(n,s),t.source===e&&!t.playing&&await t.draw()}var Wr=2,Ir={written:"write",next:"continue with",sorted:"answer",masked:"guess"};function As(t,e,n){let{by:s,word:o}=e;if(o===void 0)return"Press a word to hide it. The model then guesses what stands there.";let r=ie(t,e),i=r===null?Pr(n):[r];return s==="looks"?Br(e,i,r!==null):s?e.waits&&!i.length?u`What does ${A(o,!0)} depend on? Each word is erased in turn…`:e.kind==="vectors"?Hr(e,i):Fr(e,i,n):u`This page holds no attention weights of ${A(o,!0)}.`}function Pr(t){return t.map((e,n)=>[e,n]).filter(([e])=>e>0).sort(([e],[n])=>n-e).slice(0,Wr).map(([,e])=>e)}function Fr({kind:t,given:e,word:n,own:s,without:o},[r,i],c){let a=Ir[t],l=f=>A(e.words[f]),h=A(n,!0);if(r===void 0)return Rr({given:e,own:s,without:o,chosen:h,kind:t});let d=o(r);if(!d)return u`This page does not hold what the model does without ${l(r)}.`;if(!(c[r]>0))return u`Without ${l(r)}, the model would still ${a} ${h}, with probability
${N(d.p)}.`;let w=i===void 0?p:u` <small
>Without ${l(i)} it falls to ${N(o(i).p)}.</small
>`,m=u`falls from ${N(s)} to ${N(d.p)}.${w}`;return d.instead===n||d.instead===void 0?u`Without ${l(r)}, the model would be less sure of ${h}: its probability
${m}`:u`Without ${l(r)}, the model would ${a} ${A(d.instead)}: the probability of
${h} ${m}`}function Rr({given:t,own:e,without:n,chosen:s,kind:o}){let r=t.words.map((h,d)=>n(d)?.p).filter(h=>h!==void 0);if(!r.length)return u`There is no word that could be erased.`;let i=Math.min(e,...r),c=i<.001?`below ${Jn(e)}`:`above ${Qn(i)}`,a=i>=.9995?"at 1.000":c;return u`No single word of ${o==="written"?"the sentence":"the text"} decides ${s}: erase any one of them and its
probability stays ${a}.`}function Hr({given:t,word:e,without:n,waits:s},[o,r]){let i=A(e,!0),c=l=>I(n(l).p);if(o===void 0||!n(o))return s?u`What does ${i} depend on?`:u`No other word alone changes the vector of ${i} much.`;let a=r===void 0?p:u` <small>Without ${A(t.words[r])} it is ${c(r)}.</small>`;return u`Without ${A(t.words[o])}, the vector of ${i} changes: its cosine with
the vector before is ${c(o)}.${a}`}function Br({kind:t,given:e,word:n,looks:s},[o,r],i){let c=A(n,!0),a={written:u`While it writes ${c}, ${s.says}`,next:u`Before the next word, ${s.says}`}[t]??u`From ${c}, ${s.says}`,l=s.one?"looks":"look",h=m=>u`${A(e.words[m])} (${I(s.values[m])})`;if(o===void 0)return u`${a} ${l} at no word in particular.`;let d=r===void 0?p:u`, then at ${h(r)}`,w=t==="looks"?"It says where a word looks, not what it uses.":"To look at a word is not yet to use it.";return u`${a} ${l} ${i?"":"most "}at ${h(o)}${d}.
<small>${w}</small>`}var Dr=.02,qr=2e6;function de(t,e){return e.kind==="written"?Ur(t,e):Vr(t,e)}function Ur(t,{given:e,without:n,word:s,own:o}){return n?e.words.map((r,i)=>({one:r,at:i,p:n(i)?.p})).filter(({p:r})=>r<o-Dr).sort((r,i)=>r.p-i.p).slice(0,3).map(({one:r,at:i,p:c})=>({title:`Without “${_(r)}”`,says:`“${_(s)}” falls to ${N(c)}`,on:({changed:a})=>a===i,press:()=>e.press(i)})):[]}function Vr(t,{chosen:e,word:n}){let{attention:s,state:o,words:r}=t,[i,c,a,l]=s.shape;if(i*c*a*l>qr)return[];let h=[o.kind,e].join("/");if(t.strongest?.key!==h||t.strongest.source!==t.source)return Kr(t,h,e),null;let{layer:d,head:w,at:m,weight:f}=t.strongest,g=r.columns[m],b=c>1&&{title:`Mean of ${c} heads`,says:`of layer ${o.layer}: a mean hides what single heads do`,on:$=>$.head==="mean",press:()=>t.set({head:"mean"})},x=s.rows===s.columns&&{title:`Ask “${_(g)}”`,says:"where does it look itself?",on:({row:$})=>$===m,press:()=>t.set({row:m})};return[{title:`Show head ${d}.${w}`,says:`there “${_(n)}” looks most at “${_(g)}” (${I(f)})`,on:$=>Number($.layer)===d&&$.head===w,press:()=>t.set({layer:d,head:w})},x,b].filter(Boolean)}async function Kr(t,e,n){let{source:s,state:o,attention:r,words:i}=t;if(t.searched===e&&t.searching===s)return;Object.assign(t,{searched:e,searching:s});let[c,a]=r.shape,l=r.rows===r.columns,h={weight:-1};for(let d=0;d<c;d+=1)for(let w=0;w<a;w+=1)(await s.head(o.kind,d,w)).row(n).forEach((f,g)=>{!(l&&g===n)&&!Y(i.columns[g])&&f>h.weight&&(h={weight:f,layer:d,head:w,at:g})});t.source===s&&(t.strongest={...h,key:e,source:s},t.drawFirst())}function Ss(t,e){if(!t.engine)return Jr(t,e);if(!j(t))return Gr(t,e);if(!t.state.text.trim())return u`There is nothing to read: write a sentence.`;let n=Xr(t),s=Yr(t,e);return u`${n.length>1?u`Together, ${Ct(n.map(Ts))}`:n.map(zr)}:
${s.length?Ct(s):u`nothing changes`}.`}var Ts=([t,e])=>u`${t} ${e}`,zr=([t,e])=>Ts([t.charAt(0).toUpperCase()+t.slice(1),e]);function Gr(t,{kind:e,word:n}){let s=ht(t);return s?s.length?e==="masked"&&n===void 0?u`Hide one word. These are the ones that the model guesses most surely:`:u`Experiments on ${A(n,!0)}, found by trying words and heads of this model:`:u`No experiment was found for this text.`:u`Looking for three experiments on this model…`}function Qr({word:t},e){return e?e.length?u`All heads were searched for the one in which ${A(t,!0)} looks most at
another word:`:"":u`All heads are searched…`}function Jr(t,e){let{pointed:n,words:s}=e.given,o=t.source.header.changes?.erased[n],r=de(t,e);return e.kind!=="written"?Qr(e,r):o?.translation?.length?u`Without ${A(s[n])} the model writes:
<em><bdi>${o.translation.join(" ")}</bdi></em>`:r.length?"What is written without the words that matter most:":"No word of the sentence matters much for this one."}function Xr({state:t,origin:e}){let{texts:n}=e.header,s=n.source??n.text,o=[];if(t.text!==e.given.source)for(let{before:a,after:l}of ce(e.given.source,t.text))o.push(["with",u`${A(l)} instead of ${A(a)}`]);let r=B(t).map(a=>A(s[a]??String(a)));r.length&&o.push(["without",Ct(r)]);let i=t.off?t.off.split(","):[],c=i.map(a=>a.split(".").slice(1).join("."));return i.length&&o.push(["with",u`${i.length>1?"heads":"head"} ${Ct(c)} switched off`]),Number(t.factor)!==1&&o.push(["with",`attention scores × ${t.factor}`]),Number(t.warmth)!==1&&o.push(["at",`temperature ${t.warmth}`]),t.masks&&o.push(["with","another pattern"]),o}function Yr(t,{kind:e,chosen:n,word:s,own:o,options:r}){let{origin:i,source:c}=t;if(e==="written"){let[d,w]=[i.header.texts.target,c.header.texts.target],m=Z(d,w).map(ei);if(m.length)return m;let f=i.answer.probabilities[tt(n,w,d)];return[u`the same is written, and ${Ms(s,o,f)}`]}if(e==="vectors")return Zr(c.header.changes,n,s);if(!r.length)return[];let[[a,l]]=r,h=ti(e,i.answer);return h?a===h[0]?[Ms(a,l,h[1])]:[u`${A(h[0])} becomes ${A(a,!0)}, with probability ${N(l)}`]:[u`the model guesses ${A(a,!0)} with probability ${N(l)}`]}function Zr({now:t},e,n){if(!t)return[u`its vectors are not compared with those of the text before`];let s=I(t.similarities[e]);return[u`the cosine of the vector of ${A(n,!0)} with the one before is ${s}`]}function Ms(t,e,n){let[s,o]=[e,n].map(N);return s===o?u`${A(t,!0)} keeps probability ${s}`:u`${A(t,!0)} has probability ${s} instead of ${o}`}function ti(t,{likeliest:e,target:n,probabilities:s}){if(t==="next")return e.at(-1)[0];if(t==="masked")return e[0]?.[0];let o=s.indexOf(Math.max(...s));return[n[o],s[o]]}function ei({before:t,after:e}){return e.length?t.length?u`${A(t.join(" "))} becomes ${A(e.join(" "))}`:u`${A(e.join(" "))} is added`:u`${A(t.join(" "))} is gone`}function _s(t){return u`<div class="pills" role="toolbar" aria-label="What is changed; press one to undo it">
${ni(t).map(([e,n])=>u`<button @click=${()=>R(t,n)}>${e}</button>`)}
</div>`}function ni({state:t,origin:e}){let{texts:n}=e.header,s=n.source??n.text,{source:o}=e.given,r=ce(o,t.text).map(({before:a,after:l})=>`“${a}” → “${l}”`).join(", "),i=B(t).map(a=>[`without “${_(s[a]??String(a))}”`,{erase:D(t.erase,String(a),".")}]),c=je(t).map(([a,l,h])=>[`head ${l}.${h} off`,{off:D(t.off,[a,l,h].join("."),",")}]);return[...r?[[r,{text:o}]]:[],...i,...c,...Number(t.factor)===1?[]:[[`scores × ${t.factor}`,{factor:"1"}]],...Number(t.warmth)===1?[]:[[`temperature ${t.warmth}`,{warmth:"1"}]],...t.masks?[["another pattern",{masks:""}]]:[]]}var nn="[role=toolbar], [role=radiogroup], [role=tablist]",ue=t=>[...t.querySelectorAll("button, summary")].filter(e=>!e.closest("[data-apart]"));function Es(t){for(let e of t.querySelectorAll(nn)){let n=ue(e),s=n.find(o=>o===e.last)??n.find(o=>o.matches("[aria-checked=true], [aria-selected=true], .chosen"))??n[0];for(let o of n)o.tabIndex=o===s?0:-1}}var si=(t,e,n)=>({ArrowRight:(e+1)%n,ArrowLeft:(e-1+n)%n,Home:0,End:n-1})[t];function fe(t){let e=t.target.closest(nn);if(!e||!t.target.matches("button, summary"))return;let n=ue(e),s={ArrowDown:"written",ArrowUp:"given"}[t.key],o=s&&e.dataset.line&&e.parentElement.querySelector(`[data-line=${s}]`),r=o&&o!==e?ue(o).find(c=>c.tabIndex===0):n[si(t.key,n.indexOf(t.target),n.length)];if(!r)return;t.preventDefault();let i=r.closest(nn);i.last=r;for(let c of ue(i))c.tabIndex=c===r?0:-1;r.focus(),i.matches("[role=radiogroup], [role=tablist]")&&r.click()}var Os="Reading…";function Cs(t){let{live:e}=t.source.header;return u`<form class="live" @submit=${n=>oi(t,n)}>
<label for="sentence">${e.label}</label>
<input id="sentence" name="text" .value=${e.text} maxlength="4000" autocomplete="off" />
<button ?disabled=${t.state.busy===Os}>Read this text</button>
</form>`}async function sn(t,e){let n=await fetch(t,{method:"POST",headers:{"Content-Type":"application/json"},body:JSON.stringify({text:e})}).catch(()=>{throw new Error("The server has ended; start it again.")}),s=await n.json();if(!n.ok)throw new Error(s.error);return s}async function oi(t,e){e.preventDefault();let n=new FormData(e.target).get("text");if(!n.trim()){t.set({busy:"The sentence is empty; write one."});return}t.set({busy:Os});try{let s=await sn("read",n);t.state.busy="",await t.replace(new H(s.header,s.arrays))}catch(s){t.set({busy:s.message})}}var ri="http://www.w3.org/2000/svg";function Ns(t,e,n){let s=`${e}/${t.clientWidth}`,o=[...t.querySelectorAll(".line")],r=()=>Math.max(...o.map(w=>w.scrollWidth)),i=()=>o.some(w=>w.scrollWidth>w.clientWidth+1);if(t.fitted===s&&!i())return;t.fitted=s,t.classList.remove("wrapped");for(let w of o)w.style.minHeight="";t.style.setProperty("--s","40px");let c=parseFloat(getComputedStyle(t).fontSize),a=o.length>1?.88:.97,l=Math.min(1.85*c,40*t.clientWidth*a/r());t.style.setProperty("--s",`${l}px`);let h=l<18||i();t.classList.toggle("wrapped",h),t.classList.toggle("arcs",n),h&&t.style.setProperty("--s",`${1.3*c}px`),ii(t,h);let d=t.querySelector(".line.written");h&&d&&(d.style.minHeight=`${d.offsetHeight}px`)}function ii(t,e){let n=t.querySelector(".options.follows");if(!n)return;n.style.marginLeft="";let s=[...t.querySelectorAll(".given .w")].at(-1),o=s.offsetLeft+s.offsetWidth,r=t.clientWidth-n.scrollWidth;e||(n.style.marginLeft=`${Math.max(Math.min(o,r),0)}px`)}function Ls(t,{strengths:e,ghosts:n,pointed:s,arcs:o}){let r=t.querySelector("svg"),i=t.getBoundingClientRect(),c=d=>{let{left:w,width:m,top:f,bottom:g}=d.querySelector(".t").getBoundingClientRect();return{x:w+m/2-i.left,top:f-i.top,bottom:g-i.top}},a=t.querySelector(o?".given .chosen":".written .chosen, .options .chosen"),l=[...t.querySelectorAll(".given .w")],h=[];if(a)for(let d of l){let w=Number(d.dataset.at),m=e[w]??0,f=n.includes(w);if(d===a||!m&&!f)continue;let g=document.createElementNS(ri,"path");g.setAttribute("d",(o?ci:ai)(c(a),c(d))),f&&!m?g.setAttribute("class","ghost"):(g.style.strokeWidth=1+7*m,g.style.opacity=(.3+.6*m)*(s===null||s===w?1:.35)),h.push(g)}r.replaceChildren(...h)}function ai(t,e){let n=Math.max((t.top-e.bottom)*.55,24);return`M${t.x} ${t.top}C${t.x} ${t.top-n} ${e.x} ${e.bottom+n} ${e.x} ${e.bottom}`}function ci(t,e){if(t.top>e.bottom||e.top>t.bottom){let[o,r]=t.top<e.top?[t,e]:[e,t],i=(o.bottom+r.top)/2;return`M${o.x} ${o.bottom}C${o.x} ${i} ${r.x} ${i} ${r.x} ${r.top}`}let s=Math.min(Math.max(26,Math.abs(t.x-e.x)*.24),110);return`M${t.x} ${t.top}C${t.x} ${t.top-s} ${e.x} ${e.top-s} ${e.x} ${e.top}`}var li={depends:"Depends on",looks:"Looks at"};function Is(t){let e=hs(t);if(!e)return u`<h1><bdi>${t.source.header.title}</bdi></h1>`;(e.waits||t.engine&&!ht(t))&&queueMicrotask(()=>bt(t));let n=ms(e),{busy:s,types:o}=t.state,r=t.source.answer?.unknown??[];return u`<div
class="screen"
data-by=${e.by}
@keydown=${i=>Ci(t,i)}
@click=${{handleEvent:i=>Oi(t,i),capture:!0}}
>
<div class="top" ${O(i=>ui(t,i))}>
${t.engine&&o?Bn(t):fi(t,e)}
<span role="alert">${s}</span>
${r.length?mi(r):p}
</div>
<h1 class="answer" ${O(i=>di(t,i))}>
${As(t,e,n)}
</h1>
${wi(t,e,n)} ${Ti(t,e)?hi(t,e):p}
</div>`}function hi(t,e){let n=!!t.engine&&j(t);return u`<div class="told">
<p><span aria-live="polite" class="outcome">${Ss(t,e)}</span></p>
<button class="undo ${n?"on":""}" ?disabled=${!n} @click=${()=>Pe(t)}>
Undo
</button>
</div>
${Ei(t,e)}`}function di(t,e){e.style.height=t.hot===null?"":`${t.answerHeight}px`,t.hot===null&&(t.answerHeight=e.offsetHeight)}function ui(t,e){let n=!!t.engine&&j(t);e.style.minHeight=n&&t.topHeight?`${t.topHeight}px`:"",n||(t.topHeight=e.getBoundingClientRect().height)}function fi(t,{orientation:e,kind:n}){if(t.engine&&j(t))return _s(t);let{live:s,title:o}=t.source.header,r=!t.engine&&n!=="written";return u`${r?u`<p class="title"><bdi>${o}</bdi></p>`:p}
<p class="orientation">${e}</p>
${s&&!t.engine?Cs(t):p}`}function mi(t){return u`<p class="unknown">
Not in the training of this model: <bdi>${t.join(", ")}</bdi>; what it makes of such words
is a guess.
</p>`}function wi(t,e,n){let{given:s,written:o,options:r,arcs:i}=e,c=[t.origin?.header.title??t.source.header.title,e.kind].join("/"),a=ki(t,e,n);return u`<section
class="stage"
aria-label="The words, and links between them"
${O(l=>{Ns(l,c,!!i);let h={strengths:n,ghosts:a,pointed:ie(t,e),arcs:i};Ls(l,h)})}
>
<svg aria-hidden="true"></svg>
<div class="cap">
<p class="note"><strong>${s.label}</strong> ${yi(e,n,a)}</p>
${e.modes.length>1?gi(t,e):p}
</div>
${i?u`<div class="gap"></div>`:p} ${$i(t,e,n)}
${i||r?.length===0?p:u`<div class="gap"></div>`}
${o?bi(t,e):p} ${r?pi(t,e):p}
<div class="cap below">
<p class="note">${xi(e)}</p>
${vi(t)}
</div>
</section>`}function gi(t,{by:e}){return u`<div class="switch" role="radiogroup" aria-label="Links show what the word">
${Object.entries(li).map(([n,s])=>u`<button
role="radio"
data-mode=${n}
aria-checked=${String(n===e)}
@click=${()=>t.set({by:n})}
>
${s}
</button>`)}
</div>`}function $i(t,e,n){let{given:s,chosen:o,arcs:r,by:i,looks:c}=e,[a,l]=Xe(r?o:s.words.length,s.words.length),h=e.kind==="written"?"source":t.attention.columns,d=f=>{if(!(n[f]>0))return"";if(i==="looks")return I(c.values[f]);let{p:g}=e.without(f);return e.kind==="vectors"?I(g):Q(g)},w=f=>s.gone.includes(f)||s.pointed===f||!!r&&f===o,m=f=>{let g=i==="looks"?"looked at with":"without it";return[...s.gone.includes(f)?["erased"]:[],...d(f)?[`${g} ${d(f)}`]:[]].join(", ")};return u`<div
class="line given"
data-line="given"
role="toolbar"
aria-label="Words that are read${t.engine&&!r?"; press one to erase it":""}"
@pointerover=${f=>f.pointerType==="mouse"&&js(t,f,h,s)}
@pointerleave=${()=>Ws(t)}
@focusin=${f=>f.target.matches(":focus-visible")&&js(t,f,h,s)}
@focusout=${()=>Ws(t)}
>
${Rs(s.words,[a,l],(f,g)=>u`<button
class="w ${Fs(f)} ${rn({gone:s.gone.includes(g),chosen:r&&g===o,hot:s.pointed===g,still:!s.can(g)})}"
data-at=${g}
aria-description=${m(g)||p}
aria-pressed=${s.can(g)?String(w(g)):p}
aria-disabled=${s.can(g)?p:"true"}
.style="--k:${(n[g]??0).toFixed(3)}"
@click=${()=>s.can(g)&&s.press(g)}
>
<span class="n" aria-hidden="true">${d(g)}</span
><span class="t"><bdi>${_(f)}</bdi></span>
</button>`)}
</div>`}function bi(t,{kind:e,written:n,chosen:s}){let o=[];for(let{before:i,after:c,to:a}of Z(n.before,n.words)){let l=i.length===c.length,h=Math.max(c.length,1);for(let d=0;d<h;d+=1)o[a+d]=l?i[d]:d===0?i.join(" "):""}let r=e==="written"?"target":t.attention.rows;return u`<div
class="line written"
data-line="written"
role="toolbar"
aria-label="Words that are written; press one to explain it"
@pointerover=${i=>i.pointerType==="mouse"&&me(t,i,r)}
@pointerleave=${()=>me(t,null)}
>
${Rs(n.words,Xe(s,n.words.length),(i,c)=>u`<button
class="w ${Fs(i)} ${rn({chosen:c===s})}"
data-at=${c}
aria-pressed=${String(c===s)}
@click=${()=>n.press(c)}
>
<span class="t"><bdi>${_(i)}</bdi></span>
${o[c]?u`<span class="was"><bdi>${o[c]}</bdi></span>`:p}
</button>`)}
</div>`}function pi(t,{kind:e,options:n,chosen:s,optionsLabel:o}){let r=Math.max(...n.map(([,i])=>i));return u`<div
class="options ${e==="next"?"follows":""}"
data-line="written"
role="toolbar"
aria-label=${o}
>
${n.map(([i,c],a)=>u`<button
class="w ${rn({chosen:a===s})}"
aria-pressed=${String(a===s)}
@click=${()=>t.set({pick:a})}
>
<span class="t"><bdi>${_(i)}</bdi></span>
</button>
<i
class=${a===s?"chosen":""}
.style="width:${(100*c/r).toFixed(1)}%"
></i>
<strong>${Q(c)}</strong>`)}
</div>`}var rn=t=>Object.keys(t).filter(e=>t[e]).join(" "),Ps=t=>/^[\p{P}]$/u.test(t);function Fs(t){return Y(t)?"e":Ps(t)?"p":""}function Rs(t,[e,n],s){let o=[];for(let r=e;r<n;r+=1)(Ps(t[r])||r===t.length-1&&Y(t[r]))&&o.length?o.at(-1).push(r):o.push([r]);return o.map(r=>u`<span class="g">${r.map(i=>s(t[i],i))}</span>`)}function js(t,e,n,s){let o=e.target.closest(".w");if(!o)return;me(t,e,n);let r=s.can(Number(o.dataset.at))?Number(o.dataset.at):null;t.hot!==r&&(t.hot=r,t.drawFirst())}function Ws(t){me(t,null),t.hot!==null&&(t.hot=null,t.drawFirst())}function me(t,e,n){let s=e?.target.closest(".w");t.lit=s?{text:n,at:Number(s.dataset.at)}:null,t.light?.()}function yi({by:t,looks:e,kind:n,word:s,without:o},r,i){if(t===void 0)return"";if(t==="looks")return u`numbers: share of attention <span class="long">of ${e.says}</span>`;let c=u`dotted: what <em><bdi>${i.word}</bdi></em> depended on before`;return!o||!r.some(a=>a>0)?i.length?c:"":u`${i.length?on("numbers:",""):"numbers:"}
${on(n==="vectors"?"cosine of the vector of":"probability of","")}
${A(s,!0)} without
${i.length?u`${on("that word;","it;")} ${c}`:"that word"}`}var on=(t,e)=>u`<span class="long">${t}</span><span class="brief">${e}</span>`;function xi({kind:t,written:e,optionsLabel:n,word:s,own:o}){let r=e?.label??n;return t==="looks"||t==="vectors"||s===void 0?r?u`<strong>${r}</strong>`:"":o===void 0?u`<strong>${r}</strong>`:u`<strong>${r}</strong> ${A(s,!0)} has
<span class="o">probability ${Q(o)}</span>`}function ki(t,{kind:e,by:n,chosen:s,written:o},r){let{origin:i,source:c}=t,a=Object.assign([],{word:""});if(e!=="written"||n!=="depends"||!i||i===c)return a;let l=tt(s,o.words,o.before),h=o.before[l];if(h===o.words[s]||i.header.texts.source.length!==c.header.texts.source.length)return a;let d=i.answer.probabilities[l],w=Object.entries(i.header.changes.erased).filter(([m,{probabilities:f}])=>d-f[l]>.05&&r[m]<.05).map(([m])=>Number(m));return Object.assign(w,{word:h})}function vi(t){return u`<div class="tools" role="toolbar" aria-label="Text, model and picture">
${t.engine?u`<button class="plain" @click=${()=>Si(t)}>
Another ${t.source.header.texts.source?"sentence":"text"}
</button>
${Dn(t)}`:p}
${Ai(t)}
</div>`}function Ai(t){return u`<details class="tweaks share">
<summary>Share</summary>
<div class="sheet" data-apart>
<button @click=${()=>Mi(t)}>Copy the link to this screen</button>
<button @click=${()=>He(t,"svg")}>Save the picture as SVG</button>
<button @click=${()=>He(t,"png")}>Save the picture as PNG</button>
<p class="hint" role="status">${t.state.copied}</p>
</div>
</details>`}async function Mi(t){let e=await navigator.clipboard?.writeText(location.href).then(()=>"The link is copied.",()=>null);t.set({copied:e??"The browser does not allow it: copy the address of this page."})}async function Si(t){await t.set({types:!t.state.types});let e=t.element.querySelector("#sentence");e?.focus(),e?.select()}var Ti=(t,{kind:e})=>!!t.engine||e!=="next"&&e!=="masked",_i=u`<button disabled>
<strong>…</strong><span>trying words and heads</span>
</button>`;function Ei(t,e){let s=(t.engine?ht(t):de(t,e))??[null,null,null];return u`<div class="try" role="toolbar" aria-label="Experiments">
${s.map(o=>o?u`<button aria-pressed=${String(!!o.on(t.state))} @click=${o.press}>
<strong>${o.title}</strong><span>${o.says}</span>
</button>`:_i)}
</div>`}function Oi(t,e){let n=t.element.querySelector(".share[open]");!n||n.contains(e.target)||(n.open=!1,e.stopPropagation(),e.preventDefault())}function Ci(t,e){let n=e.target.matches("input"),s=e.key==="z"&&(e.ctrlKey||e.metaKey)&&!n,o=t.element.querySelector(".share[open]");e.key==="Escape"&&o?o.open=!1:e.key==="Escape"&&t.state.types?t.set({types:!1}):s||e.key==="Escape"&&!n?Pe(t):fe(e)}var cn={layer:{title:"layer and head",says:""},entropy:{title:"entropy",says:"low: each word looks at few others; high: at all alike",unit:"nats"},distance:{title:"distance",says:"the mean distance between a word and what it looks at",unit:"words"},first:{title:"weight of the first word",says:"a head that looks there does little (an attention sink)"},received:{title:"most received",says:"the largest share of all weight that one word receives"},effect:{title:"effect on the word",says:"how far the log odds of the word fall when the head gives nothing; one head alone: of two that do the same, neither may have an effect"},apart:{title:"distance from the other",says:"the mean Jensen-Shannon distance from the same head of what is compared: 0 equal, 1 no key in common"}},Ni=new Set(["apart","effect"]);function we(t,e){if(cn[e]||!Object.hasOwn(t.links,e))return cn[e]??{title:e,says:""};let[n,s]=t.links[e];return{title:`relation: ${e}`,says:`the mean weight on the right word, over ${n} link${n===1?"":"s"} of this text that rules for English find; ${s.toFixed(2)} if all words had the same weight; one text says little about a head in general`}}var nt=14,K=15,ln=3,Li=56,an=100;function Bs(t){let{state:e,attention:n}={state:t.state,attention:t.attention};vs(t);let s=["layer",...Object.keys(n.statistics)],o=s.includes(e.sort)?e.sort:"layer",r=we(n,o),i=Ds(n,o),c=qs(o)?"highest":"lowest",a=r.says?`Sorted by ${r.title} (${r.says}), the ${c} first. `:"",l=t.source.header.attentions,[h,d]=n.shape,w=Math.max(i.findIndex(([m,f])=>m===e.layer&&f===e.head),0);return u`
<h2>What does each head do?</h2>
<div class="bar">
${l.length>1?M("Attention",l.map((m,f)=>[f,m.name]),e.kind,m=>t.set({kind:m})):""}
${M("Sort by",s.map(m=>[m,we(n,m).title]),o,m=>t.set({sort:m}))}
${ee(t,!1)} ${Yt(t)} ${V("heads")}
</div>
<p class="hint">
${n.name}. Rows: ${n.row_title}. Columns: ${n.column_title}.
${n.sums??""} ${a}Choose a head to see it large; each small map shows the largest
weight of each part. Above each map: layer.head, both counted from 0, so
${h-1}.${d-1} is head ${d-1} of layer
${h-1}${o==="layer"?"":`; then the ${r.title}`}.
</p>
${ji(t)} ${ne(t,!1)}
<canvas
class="heads"
tabindex="0"
role="application"
aria-roledescription="map of heads"
aria-label="Heads; arrow keys move, Enter opens a head. ${Us(n,i,w)}"
data-chosen=${w}
${O(m=>Vs(t,m,i,w,o))}
@click=${m=>Ks(t,i,Fi(m))}
@keydown=${m=>Ri(t,m,i,w)}
></canvas>
<details class="twin">
<summary>The same as a table</summary>
${Hi(t,n,i,s)}
</details>
`}function Ds(t,e){let[n,s]=t.shape,o=[];for(let a=0;a<n;a+=1)for(let l=0;l<s;l+=1)o.push([a,l]);let r=t.statistics[e],i=qs(e)?-1:1,c=([a,l])=>r[a][l]??i*(1/0);return r?o.sort((a,l)=>c(a)===c(l)?0:i*(c(a)-c(l))):o}function qs(t){return Ni.has(t)||!cn[t]}var Ht=(t,e)=>t===null?"–":`${t<0?"−":""}${Math.abs(t).toFixed(e)}`,Hs=t=>`${t<0?"rise":"fall"} by ${Ht(Math.abs(t),2)}`;function ji(t){let{source:e,attention:n}=t,{effects:s}=e,o=F(t);if(!t.engine||s?.place===o&&!n.statistics.effect)return"";if(s?.place!==o)return u`<p class="hint" role="status" data-effects>
Switching off one head after the other…
</p>`;let r=Ds(n,"effect")[0],i=s.others.map((h,d)=>u`${d?" or ":""}<bdi>${h}</bdi>`),c=i.length?u` rather than ${i}`:"",a=r.join("."),l=u`“<bdi>${s.word}</bdi>”`;return u`<p class="hint" data-effects>
What each head does for ${l}${c}: without ${a} its log odds of ${Ht(s.own,2)}
${Hs(n.statistics.effect[r[0]][r[1]])}; no other head of this attention makes
them fall more. The bar above a map is as long as its head's effect, and red if the word gains
without it. Without all heads of a layer they
${n.layers.map((h,d)=>`${Hs(h)} (layer ${d})`).join(", ")}.
</p>`}function Us(t,e,n){let[s,o]=e[n],r=Object.entries(t.statistics).map(([i,c])=>`${we(t,i).title} ${Ht(c[s][o],2)}`);return`Layer ${s}, head ${o}: ${r.join(", ")}.`}function Wi(t,e,n){let s=Math.max(t.parentElement.clientWidth-2,200),o=s-2*ln+nt,r=e.shape[1],i=Math.max(Math.min(Math.floor(o/(Li+nt)),r),1),c=i;for(;r%c;)c-=1;2*c<=i&&(c=i);let a=Math.min(Math.floor(o/c)-nt,150),[,,l,h]=e.shape,d=Math.min(Math.max(Math.round(a*l/h),24),2*a);return{width:s,side:a,tall:d,across:c,down:Math.ceil(n.length/c)}}async function Vs(t,e,n,s,o){let{kind:r,scale:i}=t.state,{attention:c}=t,a=await t.source.thumbnails(r);if(!e.isConnected||t.state.view!=="heads")return;let{width:l,side:h,tall:d,across:w,down:m}=Wi(e,c,n);e.grid={side:h,tall:d,across:w},t.light=()=>e.isConnected&&t.state.view==="heads"&&Vs(t,e,n,s,o);let f=q(e,l,m*(d+K+nt)),g=W(e),{effect:b}=c.statistics,x=Math.max(...b?.flat().map(Math.abs)??[]),v=new OffscreenCanvas(a.columns,a.rows),$=Vt();f.imageSmoothingEnabled=!1,n.forEach(([y,k],E)=>{let C=ln+E%w*(h+nt),st=Math.floor(E/w)*(d+K+nt);Pi(v,a,y*c.shape[1]+k,$,i),f.drawImage(v,C,st+K,h,d),at(f,11),f.fillStyle=g.faint;let vn=c.statistics[o];f.fillText(`${y}.${k}${vn?`  ${Ht(vn[y][k],2)}`:""}`,C,st+K/2),b&&x&&(f.fillStyle=zt(Math.sign(b[y][k])),f.fillRect(C,st+K-4,h*Math.abs(b[y][k])/x,3));let Dt=E===s?2:.5;f.strokeStyle=E===s?g.accent:g.line,f.lineWidth=E===s?3:1,f.strokeRect(C-Dt,st+K-Dt,h+2*Dt,d+2*Dt),Ii(f,t,[C,st+K,h,d],g),t.state.off?.split(",").includes(`${c.kind}.${y}.${k}`)&&(f.strokeStyle=g.lit,f.lineWidth=2,f.beginPath(),f.moveTo(C,st+K+d),f.lineTo(C+h,st+K),f.stroke())})}function Ii(t,{lit:e,attention:n},[s,o,r,i],c){if(!e)return;let[,,a,l]=n.shape;t.strokeStyle=c.lit,t.lineWidth=1.5,n.rows===e.text&&t.strokeRect(s-1,o+i*e.at/a,r+2,Math.max(i/a,3));let h=w=>t.strokeRect(s+r*w/l,o-1,Math.max(r/l,3),i+2);n.columns===e.text&&h(e.at),n.columns==="read"&&e.text==="target"&&e.at+1<l&&h(e.at+1)}function Pi(t,{rows:e,columns:n,bytes:s},o,r,i){let c=new ImageData(n,e),a=new Uint32Array(c.data.buffer),l=o*e*n;for(let h=0;h<a.length;h+=1){let d=s[l+h]/255;a[h]=r[Tt(i==="root"?d:d*d)]}t.getContext("2d").putImageData(c,0,0)}function Fi(t){let{side:e,tall:n,across:s}=t.currentTarget.grid,[o,r]=mt(t),i=Math.min(Math.max(Math.floor((o-ln)/(e+nt)),0),s-1);return Math.floor(r/(n+K+nt))*s+i}function Ks(t,e,n){e[n]&&t.set({layer:e[n][0],head:e[n][1],view:"map"})}function Ri(t,e,n,s){if(e.key==="Enter"||e.key===" "){e.preventDefault(),Ks(t,n,s);return}let{across:o}=e.currentTarget.grid,r=[Math.floor(s/o),s%o],i=U(e,r,[Math.ceil(n.length/o),o]);if(i===null)return;let c=Math.min(i[0]*o+i[1],n.length-1);t.set({layer:n[c][0],head:n[c][1],said:Us(t.attention,n,c)})}function Hi(t,e,n,s){let o=s.filter(c=>c!=="layer"),r=(c,a,l)=>Ht(e.statistics[c][a][l],3),i=n.length>an?u`<p class="hint">The first ${an} of ${n.length}.</p>`:"";return u`${L("Heads as a table",["Layer","Head",...o.map(c=>we(e,c).title)],n.slice(0,an).map(([c,a])=>[c,u`<button
class="link"
aria-label="Open layer ${c}, head ${a}"
@click=${()=>t.set({layer:c,head:a,view:"map"})}
>
${a}
</button>`,...o.map(l=>r(l,c,a))]),1)}
${i}`}var z=22,pt=16,zs=640;function Gs(t,e){let n=e*z;t.revealed!==e&&(t.revealed=e,(n<t.scrollTop||n+z>t.scrollTop+t.clientHeight)&&(t.scrollTop=n-t.clientHeight/2))}function hn(t,e,n){let s=e.parentElement.parentElement,o=Math.max(s.clientWidth-2,240),r=q(e,o,e.tall),i=W(e),{rows:c,columns:a}=t.words,l=Math.min(Math.max(o*.24,70),190),h=b=>b*z+z/2+4-s.scrollTop,d=Math.max(Math.floor(s.scrollTop/z)-1,0),w=d+Math.ceil(e.tall/z)+2,m=(b,x,v)=>Bi(r,n.links(b,t.state.share,pt).links,h(b),h,[l+6,o-l-6],x,v),f=n.rows>1?.35:1;for(let b=d;b<Math.min(w,n.rows);b+=1)b!==t.state.row&&m(b,i.faint,f);t.state.row>=d-40&&t.state.row<=w+40&&m(t.state.row,i.accent,1);let g=(b,x,v,$)=>{r.textAlign=v;for(let y=d;y<Math.min(w,b.length);y+=1)at(r,13,y===$?"bold":"normal"),r.fillStyle=y===$?i.accent:i.ink,r.fillText(Et(r,b[y],l-6),x,h(y))};g(c,l,"right",t.state.row),g(a,o-l,"left",-1)}function Bi(t,e,n,s,[o,r],i,c){t.strokeStyle=i;for(let{key:a,weight:l}of e)t.globalAlpha=c<1?c*Math.min(.15+.85*l,1):Math.min(.45+.55*l,1),t.lineWidth=.8+4*l+(c<1?0:.5),t.beginPath(),t.moveTo(o,n),t.bezierCurveTo((o+r)/2,n,(o+r)/2,s(a),r,s(a)),t.stroke();t.globalAlpha=1}function Qs(t,e){let{state:n,words:s}=t,o=Math.max(e.rows,e.columns),r=Math.min(o*z+8,zs),{hidden:i,links:c}=e.links(n.row,n.share,pt);return u`
<h2>Links</h2>
<div class="bar">
${gt(t)} ${ct(e)} ${V("lines")}
<label class="choice"
><span>Weight shown: ${Math.round(100*n.share)} %</span>
<input
type="range"
min="5"
max="100"
step="5"
.value=${String(Math.round(100*n.share))}
@input=${a=>t.set({share:Number(a.target.value)/100})}
/></label>
<span class="badge" data-hidden
>hidden: ${(100*i).toFixed(0)} % of this row,
${(100*Di(e,n.share)).toFixed(0)} % of all</span
>
</div>
<p class="hint">
On the left ${t.attention.row_title}, on the right ${t.attention.column_title}. Each word
is linked to as few words as carry the chosen share of its weight, at most ${pt}. Choose a
word on the left. ${t.attention.says}
</p>
<div
class="links"
@scroll=${a=>hn(t,a.currentTarget.querySelector("canvas"),e)}
tabindex="-1"
>
<div
class="tall"
${O(a=>{a.style.height=`${o*z+8}px`,a.parentElement.style.maxHeight=`${r+2}px`})}
>
<canvas
class="lines"
tabindex="0"
role="application"
aria-roledescription="links"
aria-label="Links; up and down arrows choose a word. ${dn(t,e)}"
${O(a=>{a.tall=r,Gs(a.parentElement.parentElement,n.row),hn(t,a,e)})}
@click=${a=>qi(t,a,e)}
@keydown=${a=>Ui(t,a,e)}
></canvas>
</div>
</div>
<p class="readout">${dn(t,e)}</p>
<details class="twin">
<summary>The row of <bdi>${s.rows[n.row]}</bdi> as a table</summary>
${Ue(t,e)}
</details>
${c.length===0?u`<p class="hint">This word looks at nothing.</p>`:""}
`}function Di(t,e){if(t.hiddenShare!==e){let[n,s]=[0,0];for(let o=0;o<t.rows;o+=1){n+=t.links(o,e,pt).hidden;for(let r of t.row(o))s+=r}t.hiddenShare=e,t.hiddenMass=s?n/s:0}return t.hiddenMass}function dn(t,e){let{rows:n,columns:s}=t.words,{links:o,hidden:r}=e.links(t.state.row,t.state.share,pt),i=o.slice(0,5).map(({key:c,weight:a})=>`${s[c]} (${a.toFixed(2)})`).join(", ");return`${n[t.state.row]} looks at ${i||"nothing"}; ${(100*r).toFixed(0)} % of its weight is hidden.`}function qi(t,e,n){let s=e.currentTarget.parentElement.parentElement,o=Math.floor((mt(e)[1]+s.scrollTop-4)/z);o>=0&&o<n.rows&&t.set({row:o})}function Ui(t,e,n){let s=U(e,[t.state.row,0],[n.rows,1]);s!==null&&t.set({row:s[0],said:""}).then(()=>t.set({said:dn(t,n)}))}var Js="Probabilities are among all words, after the words that stand before; of a word in several sub-words the product.",Vi={written:{of:"source",one:"Written word",says:Js,ends:""},next:{of:"text",one:"Next word",says:Js,ends:"Words up to the changed one were predicted before it was read, so their probability stays."},masked:{of:"text",one:"Masked word",says:"Probabilities are among all words. Each masked word is named by what is most probable there in the text as it is.",ends:""},vectors:{of:"text",one:"Word",says:"The cosine is between the vectors that the last layer gives a word before and after: 1 is the same direction. Of a word in several sub-words their mean is taken.",ends:""}};function Ys(t){let{header:e}=t.source,{changes:{follows:n="words",unchanged:s,erased:o}}=e,{texts:r}=(t.source.base??t.source).header,i=n!=="words"?n:r.target?"written":"next",c={written:()=>r.target,next:()=>[...r.text.slice(1),s.likeliest.at(-1)[0][0]],masked:()=>s.likeliest.map(([[$]])=>$),vectors:()=>r.text}[i](),a=i==="next"?1:0,l=Object.keys(o).map(Number),h=t.source.header.changes.now,d=l.includes(t.state.changed)?t.state.changed:null,w=Ki(t,{kind:i,first:a,places:l,chosen:d,last:c.length-1}),m=$=>i==="masked"?`${c[$]} (masked place ${$+1})`:a&&$===c.length-1?`${c[$]} (what follows)`:c[$],f=$=>i==="vectors"?$.similarities:$.probabilities,g=$=>f(o[$])[w],b=l.filter($=>i==="next"?$<=w:i!=="vectors"||$!==w),x=b.length?b:l,v=d??x[S(x.map($=>-g($)),1)[0]];return{kind:i,...Vi[i],source:r.source??r.text,follow:c,written:w,named:m,numbers:f,unchanged:s,erased:o,places:l,place:v,all:h}}function Ki({state:t},{kind:e,first:n,places:s,chosen:o,last:r}){let i=l=>Math.min(Math.max(Number(l),0),r);if(e==="written")return i(t.row);if(t.next!==void 0)return i(t.next);if(e!=="next")return i(e==="masked"?0:t.row);let c=t.row-n,a=c>=Math.min(...s)?i(c):r;return Math.max(a,o??0)}function Zs(t){let e=Ys(t),{kind:n,source:s,follow:o,written:r,named:i,numbers:c,unchanged:a,erased:l,places:h,place:d,all:w}=e,m=w??l[d],f=t.engine&&t.source.answer.erasable.length?"Each word is erased in turn…":`The ${e.of} has no word that can be erased.`;if(!m)return u`<h2>What if a word were missing?</h2>
<p class="hint">${f}</p>`;let g=($,y,k)=>n==="vectors"?[$,[],c(y)[k],[]]:[$,[c(a)[k]],c(y)[k],[y.likeliest[k].map(([E,C])=>`${E} ${Q(C)}`).join(", ")]],b=$=>n==="vectors"?[$,"Cosine"]:[$,"Before","Now","Most probable now"],x=`Each ${e.one.toLowerCase()}`,v=u`“<bdi>${i(r)}</bdi>”`;return u`
<h2>${t.engine?"What if it were changed?":"What if a word were missing?"}</h2>
${t.engine?u`<p class="hint">
Press words above to erase them, switch heads off in “Heads”, or change the model.
</p>`:p}
<div class="bar">
${w?p:M("Without",h.map($=>[$,s[$]]),d,$=>zi(t,Number($)))}
${M(e.one,o.map(($,y)=>[y,i(y)]),r,$=>t.set(n==="written"?{row:$}:{next:$}))}
</div>
<p class="summary" data-change>${to(e,m,d)}</p>
<div class="columns">
<section class="panel">
<h3>${x} ${w?"now":u`without “<bdi>${s[d]}</bdi>”`}</h3>
${Xs(x,b("Word"),o.map(($,y)=>g(i(y),m,y)),r)}
</section>
${w?p:u`<section class="panel">
<h3>${v} without each word</h3>
${Xs("Erasures",b("Without"),h.map($=>g(s[$],l[$],r)),h.indexOf(d))}
</section>`}
</div>
<p class="hint">
${e.says} An erased word keeps its place and has the mean embedding of the words of the
${e.of}. ${e.ends}
</p>
`}function to({kind:t,source:e,follow:n,named:s,numbers:o,written:r,unchanged:i,all:c},a,l){let h=o(a)[r],d=c?"As changed":`Without “${e[l]}”`;if(t==="vectors"){let b=n.map(($,y)=>y).filter($=>$!==l),x=b[S(b.map($=>-o(a)[$]),1)[0]],v=x===void 0?"":x===r?"; that of no other word moves more":`; of the other words that of “${s(x)}” moves most (${o(a)[x].toFixed(3)})`;return`${d}, the vector of “${s(r)}” has a cosine of ${h.toFixed(3)} with the one before${v}.`}if(t==="next"&&!c&&r<l)return`The probability of “${s(r)}” stays ${T(h)}: the model predicts it before it reads “${e[l]}”.`;let[w,m]=a.likeliest[r][0],f=o(i)[r],g=h<m?`; most probable there is “${w}” (${T(m)})`:"";return`${d}, the probability of “${s(r)}” `+(T(h)===T(f)?`stays ${T(h)}${g}.`:`is ${T(h)} instead of ${T(f)}${g}.`)}function Xs(t,e,n,s){let o=([r,i,c,a])=>[r,...i.map(T),u`<meter
min="0"
max="1"
value=${String(c)}
aria-label=${e.length>2?"probability":"cosine"}
></meter>
${T(c)}`,...a];return L(t,e,n.map(o),0,s)}function zi(t,e){t.state.changed=e;let n=Ys(t);t.set({changed:e,said:to(n,n.erased[e],e)})}var Gi=["no pair is allowed","some pairs are allowed","all pairs are allowed"],un=100,Qi=["Length","Allowed pairs","Share of all","Computed here","Backend","Keys of a query"],Ji="Draw with the mouse, or press the space bar, to allow pairs and to forbid them; the text of the pattern follows.";function no(t){let{patterns:e}=t.source.header,n=Math.min(t.state.pattern,e.length-1),s=t.engine?Xi(t,n):e[n];if(!s)return u`<h2>Who may look at whom?</h2>
<p class="hint">Listing the pairs…</p>`;let o=Math.min(t.state.panel,s.panels.length-1),r=[t.source.header.title,n,o,s.panels[o].text].join("/"),i=()=>t.pairs?.stroke||t.pairs?.key===r&&t.pairs.source===t.source?t.pairs:null;i()||na(t,s,o,r);let c=i(),a=s.panels[o];return u`
<h2>Who may look at whom?</h2>
<div class="bar">
${e.length>1?M("Used in",e.map(({name:l},h)=>[h,l]),n,l=>t.set({pattern:Number(l),panel:0})):p}
${s.panels.length>1?M("Heads",s.panels.map(({heads:l},h)=>[h,l.join(", ")]),o,l=>t.set({panel:Number(l)})):p}
${s.drawable?Xt(t,s.drawable):p}
<span class="badge">counted exactly</span> ${V("pattern")}
</div>
<p class="summary">
<code><bdi>${a.text}</bdi></code
>: ${ge(a.pairs)} of ${ge(s.q_len*s.k_len)} pairs
(${$n(a.pairs,s.q_len*s.k_len)}).
</p>
<p class="hint">
Rows: queries. Columns: keys.
${s.rows.length?"Sub-words, as the model reads them. ":""}${s.q_start?`Queries are at positions ${s.q_start} to ${s.q_start+s.q_len-1}. `:""}${s.tile>1?`Each cell stands for ${s.tile} × ${s.tile} pairs. `:""}${s.note}${s.drawable?Ji:""}
</p>
<div class="beside">
<div>
${c?sa(t,c):u`<p class="hint">Unpacking…</p>`}
${ra(s.tile>1)}
</div>
<div>
${s.growth.length?ia(s):p}
${c?u`<details class="twin" open>
<summary>The ${s.tile>1?"rows":"queries"} as a table</summary>
${aa(c)}
</details>`:p}
</div>
</div>
`}function Xi(t,e){let{answer:n,header:s}=t.source,{model:o}=s,r=s.patterns[e],i=o.kinds.find(({name:k})=>r.name.startsWith(`${k},`)),{kind:c,rows:a,columns:l}=i,h=k=>n.pieces[k==="read"?"target":k],d=Ie(t,c),w=d||r.text,m=h(a),f=h(l),g=w.includes("per_head")?s.attentions.find(k=>k.kind===c).shape[1]:1,b=[m.length,f.length],x=Array.from({length:g},(k,E)=>E),v=[e,w,...b].join("/");t.listing!==v&&(t.listing=v,so(t,i,w,b,x).then(k=>{t.listing===v&&(t.listed={key:v,at:e,all:k},t.draw())}));let{listed:$}=t;if($?.key!==v)return $?.at===e?$.one:null;let y=k=>({heads:g>1?[k]:[],text:w,states:$.all[k].slice(),shape:b,pairs:$.all[k].reduce((E,C)=>E+C,0)/2});return $.one={...r,text:w,rows:m,columns:f,q_len:m.length,k_len:f.length,drawable:i,growth:d?[]:r.growth.slice(1),panels:x.map(y)}}async function so(t,{unwritten:e},n,[s,o],r){let i=e?`causal & (${n})`:n;try{return await t.engine.ask("pairs",{text:i,rows:s,columns:o,heads:r})}catch{return r.map(()=>new Uint8Array(s*o))}}var oo="\\(query_set\\([\\d., ]+\\) & key_set\\([\\d., ]+\\)\\)",Yi=new RegExp(`( \\| ${oo})+$`),Zi=new RegExp(`( & ~${oo})+$`);function ta(t){let e=t.replace(Zi,"");return(e!==t&&e.includes("|")?e.replace(/^\((.*)\)$/s,"$1"):e).replace(Yi,"")}function ro(t){let e=[];for(let n of t)e.at(-1)?.[1]===n-1?e.at(-1)[1]=n:e.push([n,n]);return e}var eo=t=>ro(t).map(([e,n])=>e===n?e:`${e}..${n}`).join(", "),io=({columns:t},e)=>Array.from({length:t},(n,s)=>s).filter(e);async function ea(t,e){let{states:n,rows:s,columns:o,one:r,panel:i}=e,c=ta(i.text),[a]=await so(t,r.drawable,c,[s,o],[i.heads[0]??0]),l=[[],[]];[2,0].forEach((d,w)=>{let m=new Map;for(let f=0;f<s;f+=1){let g=f*o,b=eo(io(e,x=>n[g+x]===d&&a[g+x]!==d));b&&m.set(b,[...m.get(b)??[],f])}for(let[f,g]of m)l[w].push(`(query_set(${eo(g)}) & key_set(${f}))`)});let h=[c,...l[0]].join(" | ");return[l[1].length&&h.includes("|")?`(${h})`:h,...l[1].map(d=>`~${d}`)].join(" & ")}async function na(t,e,n,s){let o=e.panels[n],[r,i]=o.shape,c=o.states??await t.source.bytes(o.place);t.pairs={key:s,source:t.source,one:e,panel:o,rows:r,columns:i,states:c},o.states||t.draw()}function sa(t,e){let n=mn(e,...fn(t,e));return Nt("pattern",{role:"map of pairs",label:"Pairs",said:n,paints:s=>co(t,s,e),points:s=>lo(t,s,e),begins:s=>oa(t,s,e),ends:()=>gn(t,e),keys:s=>{let o=fn(t,e);s.key===" "&&e.one.drawable&&(s.preventDefault(),wn(e,o,!e.states[o[0]*e.columns+o[1]]),gn(t,e));let r=U(s,o,[e.rows,e.columns]);r&&t.set({pair:r,said:mn(e,...r)})}})}function fn(t,{rows:e,columns:n}){let[s,o]=t.state.pair??[0,0];return[Math.min(s,e-1),Math.min(o,n-1)]}function ao(t,e){let{states:n,columns:s,one:o}=t,r=io(t,l=>n[e*s+l]),i=ro(r),c=i.slice(0,6).map(([l,h])=>{let[d,w]=[l*o.tile,Math.min((h+1)*o.tile,o.k_len)-1];return d===w?`${d}`:`${d} to ${w}`}).join(", "),a=i.length-6;return{count:r.length,named:c+(a>0?` and ${a} more spans`:"")}}function mn(t,e,n){let{one:s,states:o,columns:r,rows:i}=t,c=o[e*r+n];if(s.tile>1){let f=(g,b)=>`${g*s.tile} to ${Math.min((g+1)*s.tile,b)-1}`;return`Queries ${f(e,s.q_len)}, keys ${f(n,s.k_len)}: ${Gi[c]}.`}let a=(f,g)=>f.length?`${g} “${f[g]}”`:`${g}`,{count:l,named:h}=ao(t,e),d=0;for(let f=0;f<i;f+=1)d+=o[f*r+n]?1:0;let[w,m]=[a(s.rows,e),a(s.columns,n)];return`Query ${w} ${c?"may":"may not"} look at key ${m}. It may look at ${l} of ${r} keys${l?`: ${h}`:""}; ${d} of ${i} queries may look at this key.`}function co(t,e,n){let{one:s,rows:o,columns:r,states:i}=n,c=Lt(e,{rows:o,columns:r});s.rows.length||Object.assign(c,{named:!1,left:40,right:16,top:24});let{cell:a,left:l,right:h,top:d}=c,w=W(e);e.place=c;let m=q(e,l+r*a+h,d+o*a+2),f=a>=8?1:0,g=new OffscreenCanvas(r,o),b=g.getContext("2d");m.fillStyle=w.unseen,m.fillRect(l,d,r*a,o*a);for(let x=0;x<o;x+=1)for(let v=0;v<r;v+=1){let $=i[x*r+v];if(!$)continue;let[y,k,E,C]=f?[m,l+v*a,d+x*a,a-f]:[b,v,x,1];y.globalAlpha=$===1?.45:1,y.fillStyle=w.accent,y.fillRect(k,E,C,C)}m.globalAlpha=1,m.imageSmoothingEnabled=a<1,f||m.drawImage(g,l,d,r*a,o*a),c.named?jt(m,s,c,w):Wt(m,{rows:o,columns:r},c,w,s.tile),lt(e,...fn(t,n))}function lo(t,e,n){let s=e.currentTarget,[o,r]=$t(e,n);if(o===void 0)return;lt(s,o,r),n.stroke&&(wn(n,[o,r],n.stroke.allow),co(t,s,n));let i=mn(n,o,r);e.type==="click"?(e.pointerType==="touch"&&n.one.drawable&&wn(n,[o,r],!n.states[o*n.columns+r]),gn(t,n),t.set({pair:[o,r],said:i})):te(s.parentElement.nextElementSibling,i)}function oa(t,e,n){let[s,o]=$t(e,n);s===void 0||!n.one.drawable||e.button||e.pointerType==="touch"||(n.stroke={allow:!n.states[s*n.columns+o]},lo(t,e,n))}function wn(t,[e,n],s){t.one.drawable.unwritten&&n>e||(t.states[e*t.columns+n]=s?2:0,t.drawn=!0)}async function gn(t,e){e.stroke=null,e.drawn&&(e.drawn=!1,Jt(t,e.one.drawable.kind,await ea(t,e)))}function ra(t){return u`<p class="legend">
<i class="allowed"></i><span>${t?"all allowed":"may look"}</span>
${t?u`<i class="allowed some"></i><span>some allowed</span>`:p}
<i class="masked"></i><span>${t?"none allowed":"may not look"}</span>
</p>`}function ia(t){return u`<h3>How it grows with the length</h3>
<div data-growth>
${L("Pairs by length",Qi,t.growth.map(({length:e,pairs:n,of:s,computed:o,backend:r},i)=>{let c=i===0&&!t.drawable;return[`${ge(e)}${c?" (shown)":""}`,ge(n),$n(n,s),o===null?"—":$n(o,1),r,ca(n/(s/(c?t.k_len:e)))]}))}
</div>
<p class="hint">
Computed here: the share of all pairs that regard computes on this machine's CPU, by the
backend that it chooses for heads of 64 numbers; short rows are computed in whole blocks. Where
allowed pairs grow as fast as the length, attention takes linear time.
</p>`}function aa(t){let{one:e,rows:n}=t,s=e.tile>1,o=e.rows.length>0,r=Array.from({length:Math.min(n,un)},(c,a)=>{let{count:l,named:h}=ao(t,a);return[a*e.tile,...o?[e.rows[a]]:[],l,h||"none"]}),i=[s?"Queries from":"Query",...o?["Word"]:[],s?"Tiles":"Keys","Which"];return u`${L("Queries as a table",i,r,o?1:0)}
${n>un?u`<p class="hint">The first ${un} of ${n}.</p>`:p}`}function ge(t){return t.toLocaleString("en")}function ca(t){return t.toLocaleString("en",{maximumFractionDigits:1})}function $n(t,e){let n=100*t/e;return`${n>=.1||n===0?n.toFixed(1):n.toPrecision(2)} %`}var $e=class{constructor({model:e},n=document){let s=c=>n.getElementById(c).textContent,[o,r]=[s("regard-model"),s("regard-tensors")],i=this.waiting=new Map;this.model=e,this.words=JSON.parse(o).words??[],this.worker=window.regardWorker,this.worker.onmessage=({data:{id:c,answer:a,error:l}})=>{let{done:h,fail:d}=i.get(c);i.delete(c),l===void 0?h(a):d(new Error(l))},this.ready=this.#t("load",{text:o,packed:r,digest:e.digest}),this.ready.catch(()=>{}),this.last=0}#t(e,n){return new Promise((s,o)=>{let r=this.last=(this.last??0)+1;this.waiting.set(r,{done:s,fail:o}),this.worker.postMessage({...n,id:r,ask:e})})}async ask(e,n){return await this.ready,this.#t(e,n)}async run(e){let{target:n,probabilities:s,text:o,unknown:r,attention:i}=await this.ask("run",e),c=([l,...h],d)=>Array.from({length:l},(w,m)=>{let f=d.subarray(m*d.length/l,(m+1)*d.length/l);return h.length?c(h,f):f[0]}),a=Object.entries(i).map(([l,{shape:h,weights:d}])=>[l,c(h,d)]);return{target:n,probabilities:s,text:o,unknown:r,attention:Object.fromEntries(a)}}async play(e,n){let{changed:s,...o}=Qt(n);this.plain?.given.source!==o.source&&(this.plain=new et(e,o,await this.ask("run",o)));let{plain:r}=this;if(!Object.keys(s).length)return r;let i={...o,...s},c=r.answer.follows===void 0?r.answer.ids.target:[r.answer.follows];return new et(e,i,await this.ask("run",{...i,against:c}),r)}};var be={erase:{title:"Erasure",says:"Each word is erased in turn. A positive number is how much the model's preference for the word falls."},gradients:{title:"Integrated gradients",says:"The preference for the word is divided among the words that were read. Negative numbers speak against it."},attention:{title:"Raw attention",says:"Where all heads look on average while the word is written. It does not say what the model uses."},rollout:{title:"Attention rollout",says:"Attention multiplied through all layers. A weak lens: it ignores what the layers compute."}},la=2;function uo(t){let{header:e}=t.source,n=e.texts[e.written],s=d=>e.explained[d]||t.engine&&n[d]!=="<begin>"&&n[d]!=="<end>",o=s(t.state.place??e.chosen)?t.state.place??e.chosen:e.chosen,r=d=>t.set({place:d,row:d,said:da(e.explained[d])}),i=e.explained[o];i||bt(t);let c=u`<h2>What does this word depend on?</h2>
${e.texts.target?p:u` <p class="hint">Choose a word:</p>
<div class="words" role="group" aria-label="Words to explain">
${n.map((d,w)=>s(w)?u`<button
class="word"
aria-pressed=${w===Number(o)?"true":"false"}
@click=${()=>r(w)}
>
<bdi>${d}</bdi>
</button>`:u`<span class="word plain"><bdi>${d}</bdi></span>`)}
</div>`}`;if(!i?.length)return u`${c}
<p class="hint" role="status">
${i?"Nothing was read before this word.":"Computing what it depends on…"}
</p>`;let a=i.find(d=>d.lens===(t.state.lens??"erase"))??i[0],l=i.find(d=>d.lens==="attention"),h=l&&l!==a?ho(t,l,u`<h3>${be.attention.title}</h3>`):p;return u`${c}
<p class="question">
Why <strong><bdi>${a.word}</bdi></strong> rather than ${ha(a.others)}? Log odds
${a.log_odds.toFixed(2)}, probability ${a.probability.toFixed(3)} among these.
</p>
<div class="columns">
${ho(t,a,u`<h3>By a lens</h3>
${M("Lens",i.map(d=>[d.lens,be[d.lens].title]),a.lens,d=>t.set({lens:d}))}`)}
${h}
</div>
<p class="hint">
The words that <bdi>${a.word}</bdi> is compared with are those that the model found most
probable beside it, unless others were asked for. “<bdi>&lt;begin&gt;</bdi>” and
“<bdi>&lt;end&gt;</bdi>” are never erased.
</p> `}function ha(t){return t.map((e,n)=>u`${n?n===t.length-1?" or ":", ":""}<bdi>${e}</bdi>`)}var da=t=>t?.length?fo(t[0]):"";function fo(t){let{title:e}=be[t.lens],n=i=>S(i.map(([,c])=>c),la).filter(c=>i[c][1]>0).map(c=>`“${i[c][0]}” (${bn(t,i[c][1])})`).join(", then ")||"none of these words";if(t.lens!=="attention"&&t.lens!=="rollout")return`${e}: “${t.word}” depends most on ${n([...t.source,...t.written])}.`;let s=[[t.source,"in the source"],[t.written,"in what was written"]].filter(([i])=>i.length),o=s.map(([i,c])=>`${s.length>1?`${c} `:""}at ${n(i)}`).join("; "),r=s.length>1?" The weights of each side sum to 1.":"";return`${e}: “${t.word}” looks most ${o}.${r}`}function bn(t,e){return t.lens==="attention"||t.lens==="rollout"?e.toFixed(2):`${e<0?"−":"+"}${Math.abs(e).toFixed(2)}`}function ho(t,e,n){let s=Math.max(...[...e.source,...e.written].map(([,r])=>Math.abs(r)),0),o=[["In the source",e.source],["In what was already written",e.written]];return u`<section class="panel" data-lens=${e.lens}>
<div class="bar">${n}</div>
<p class="summary">${fo(e)}</p>
${o.map(([r,i])=>i.length?u`<h4>${r}</h4>
<div class="words">
${i.map(([c,a])=>ua(t,e,c,a,s))}
</div>`:p)}
<p class="hint">${be[e.lens].says} <span class="faint">${e.cost}.</span></p>
</section>`}function ua(t,e,n,s,o){let i=e.lens==="attention"||e.lens==="rollout"?_t(o?s/o:0):Gt(s,o),c=`${n}: ${bn(e,s)}`;if(e.lens==="erase"){let a=1/(1+Math.exp(-(e.log_odds-s)));c+=`; without it the probability of ${e.word} is ${a.toFixed(3)} instead of ${e.probability.toFixed(3)}`}return u`<span class="scored" title=${c}
><span class="word" .style=${i}><bdi>${n}</bdi></span>
<small>${bn(e,s)}</small></span
>`}var fa="http://www.w3.org/1998/Math/MathML",ma=new Set(["math","mrow","mi","mn","mo","mtext","msub","msup","msubsup","mfrac","msqrt"]);function pn([t,...e]){let n=document.createElementNS(fa,ma.has(t)?t:"mtext");return t==="math"&&n.setAttribute("display","block"),t==="mo"&&"()[]|".includes(e[0])&&n.setAttribute("stretchy","false"),n.append(...e.map(s=>Array.isArray(s)?pn(s):s)),n}var yt=16,mo=1024,yn=20;function go(t,e,n){if(n.words)return u`<ol class="words">
${n.words.map(m=>u`<li class="word"><bdi>${m}</bdi></li>`)}
</ol>`;let{values:s,rows:o,columns:r,only:i}=n,c=m=>m.labels===null?null:t.record.labels[m.labels],a=i===null?p:u`<p class="hint">
The numbers of every word are too many to store; these belong to the word that was followed
when the page was made.
</p>`;if(!o&&c(r)&&r.size>2*yn)return u`${a}${ga(e,n,c(r))}`;let l=o?Math.min(r.size,Math.max(Math.floor(mo/o.size),1)):Math.min(r.size,mo),h=r.size-l,d=o?Array.from({length:o.size},(m,f)=>({head:wo(o,c(o),f),from:f*r.size,to:f*r.size+l})):c(r)?[{head:"",from:0,to:l}]:Array.from({length:Math.ceil(l/yt)},(m,f)=>({head:`${f*yt} to ${Math.min((f+1)*yt,l)-1}`,from:f*yt,to:Math.min((f+1)*yt,l)})),w=o||c(r);return u`${a}
${De("Numbers of the step",u`<table class="numbers">
<thead>
<tr>
<td></td>
${Array.from({length:w?l:Math.min(yt,l)},(m,f)=>u`<th scope="col">
${w?u`<bdi>${wo(r,c(r),f)}</bdi>`:`+${f}`}
</th>`)}
</tr>
</thead>
<tbody>
${d.map(({head:m,from:f,to:g})=>u`<tr>
${m?u`<th scope="row"><bdi>${m}</bdi></th>`:u`<td></td>`}
${Array.from(s.subarray(f,g),b=>wa(e,b,n.most))}
</tr>`)}
</tbody>
</table>`)}
${h?u`<p class="hint">… ${h} more ${r.unit} in each row.</p>`:p}`}function wo(t,e,n){return e?e[n]:String(n)}function wa(t,e,n){return u`<td .style=${$o(t,e,n)} title=${String(e)}>${bo(e)}</td>`}function $o(t,e,n){return e===-1/0?"":t.scale==="weights"?_t(e):t.scale==="signed"?Gt(e,n):""}function bo(t){if(t===-1/0)return"−∞";if(Number.isInteger(t)&&Math.abs(t)<1e6)return String(t).replace("-","−");let e=Math.abs(t)<1e3?t.toFixed(3):t.toPrecision(3);return(Number(e)===0?e.replace("-",""):e).replace("-","−")}function ga(t,{values:e,most:n},s){let o=S(e,yn);return u`${L("The largest numbers of the step",["Id","Sub-word","Number"],o.map(r=>[r,s[r],u`<span .style=${$o(t,e[r],n)} title=${String(e[r])}
>${bo(e[r])}</span
>`]),1)}
<p class="hint">The ${yn} largest of ${e.length.toLocaleString("en")}.</p>`}var xn=30,$a=/^Words$|with positions|queries|keys|values|: scores|weights|context vectors|output|next word|Distribution|likeliest/,ba=/layer [1-9]/i;function po(t){let e=xa(t);if(!e)return u`<h2>Step by step</h2>
<p class="hint" role="status">${t.walkFailed??"Computing every step…"}</p>`;let{steps:n,note:s}=e.record;if(!n.length)return u`<h2>Step by step</h2>
<p class="hint">${s}</p>`;let o=Math.min(t.state.step,n.length-1),r=n[o],i=yo(t,e),c=i.indexOf(o),a=[...new Set(i.map(m=>n[m].section))],l=ka(t,e.record),h=`${o}/${l.join()}`;(t.stepShown?.key!==h||t.stepShown.walk!==e)&&va(t,e,r,l,h);let d=t.stepShown?.key===h&&t.stepShown.walk===e?t.stepShown:null,w=t.engine&&t.source.header.walk&&(t.source.base||t.source.given.source!==t.source.header.model.text);return u`
<h2>Step by step</h2>
${w?pa(t.source.header.model.text):p}
<div class="bar">
${M("Part",a.map((m,f)=>[f,m]),a.indexOf(r.section),m=>pe(t,e,i.find(f=>n[f].section===a[m])))}
${kn(e.record).map((m,f)=>M(f?"and of the source":"Word followed",e.record.labels[m].map((g,b)=>[b,g]),l[f],g=>t.set({followed:Object.assign([...l],{[f]:Number(g)})})))}
<button @click=${()=>pe(t,e,i[c-1])} ?disabled=${c===0}>
Previous step
</button>
<button
@click=${()=>pe(t,e,i[c+1])}
?disabled=${c===i.length-1}
>
Next step
</button>
<span class="badge">step ${c+1} of ${i.length}</span>
${i.length<n.length?u`<button @click=${()=>t.set({whole:"yes"})}>
Walk all ${n.length} steps
</button>`:p}
</div>
<section
class="panel step"
tabindex="0"
aria-roledescription="step"
aria-label="Left and right arrows change the step. ${xo(r)}"
@keydown=${m=>Sa(t,m,e,i,c)}
>
<h3>${r.title}</h3>
${r.says?u`<p>${r.says}</p>`:p} ${r.formula?ya(r):p}
<pre><code>${r.line}</code></pre>
<p class="hint" data-shape>${Ma(r)}</p>
${d?go(e,r,d):u`<p class="hint">Unpacking…</p>`}
</section>
<p class="hint">
${s} ${e.record.checks} results were compared with the model's own; the largest
difference is ${e.record.difference.toExponential(1)}. Numbers are computed with 64 bits
and stored with 32. Sentences that name a word are about
“<bdi>${e.record.words[e.record.word]}</bdi>”.
</p>
`}function yo({state:t},{record:{steps:e}}){let n=e.map((i,c)=>c),s=n.filter(i=>i===0||$a.test(e[i].title)&&!ba.test(e[i].section)),o=s.length>xn?[...s.slice(0,xn-3),...s.slice(-3)]:s;return t.whole||n.length<=xn||!o.includes(t.step)?n:o}function pa(t){return u`<p class="hint">
These steps were stored when the page was made, for “<bdi>${t}</bdi>” and the model as
trained.
</p>`}function ya({formula:t}){let e=O(n=>n.replaceChildren(pn(t)));return u`<div class="formula" ${e}></div>`}function xa(t){let{source:e}=t;if(e.header.walk)return e.walk??={record:e.header.walk,source:e};if(e.walk||t.walkAsked===e)return e.walk;t.walkAsked=e,t.walkFailed=void 0,sn("walk",e.given?.source??e.header.live.text).then(n=>{e.walk={record:n.walk,source:new H({},n.arrays)},t.draw()},n=>{t.walkFailed=n.message,t.draw()})}function kn({steps:t,labels:e,words:n}){let s=e.findIndex(r=>r.length===n.length&&r.every((i,c)=>i===n[c])),o=new Set(s<0?[]:[s]);for(let{axes:r}of t)for(let i of r)i.unit==="words"&&i.chosen!==null&&i.labels!==null&&o.add(i.labels);return[...o]}function ka(t,e){return kn(e).map((n,s)=>{let o=s===0?e.word:e.steps.flatMap(({axes:i})=>i).find(i=>i.labels===n&&i.chosen!==null).chosen,r=t.state.followed?.[s]??o;return Math.min(r,e.labels[n].length-1)})}async function va(t,e,n,s,o){if(t.stepAsked===o&&t.stepFor===e)return;if(Object.assign(t,{stepAsked:o,stepFor:e}),n.words){Object.assign(t,{stepShown:{key:o,walk:e,words:n.words}}),t.draw();return}let r=await e.source.bytes(n.place),i=new Float32Array(r.buffer),c=kn(e.record),{axes:a}=n,l=null,h=i;if(n.only!==void 0)l=n.only,a=a.filter((f,g)=>g!==l);else if(a.length>1){let f=a.findIndex(({chosen:g})=>g!==null);if(f>=0){let g=s[Math.max(c.indexOf(a[f].labels),0)];h=Aa(i,a.map(({size:b})=>b),f,Math.min(g,a[f].size-1)),a=a.filter((b,x)=>x!==f)}}let d=a[a.length-1],w=0;for(let f of i)Number.isFinite(f)&&(w=Math.max(w,Math.abs(f)));let m=a.length>1?a[a.length-2]:null;t.stepShown={key:o,walk:e,values:h,rows:m,columns:d,most:w,only:l},t.draw()}function Aa(t,e,n,s){let o=e.slice(n+1).reduce((c,a)=>c*a,1),r=e.slice(0,n).reduce((c,a)=>c*a,1),i=new Float32Array(r*o);for(let c=0;c<r;c+=1){let a=(c*e[n]+s)*o;i.set(t.subarray(a,a+o),c*o)}return i}function Ma(t){let e=t.axes.map(({size:n,unit:s})=>`${n.toLocaleString("en")} ${n===1?s.replace(/s$/,""):s}`).join(" × ");return t.words||t.axes.length<2?e:`${e}; shown for the followed word`}function xo(t){return`${t.section}: ${t.title}.`}function pe(t,e,n){let s=yo(t,e),o=`Step ${s.indexOf(n)+1} of ${s.length}. `;t.set({step:n,said:o+xo(e.record.steps[n])})}function Sa(t,e,n,s,o){if(e.target!==e.currentTarget)return;let{steps:r}=n.record,i=a=>{let l=h=>r[s[h]].section;for(let h=o+a;h>=0&&h<s.length;h+=a)if(l(h)!==l(o))return a>0?h:s.findIndex((d,w)=>l(w)===l(h));return a>0?s.length-1:0},c={ArrowRight:Math.min(o+1,s.length-1),ArrowLeft:Math.max(o-1,0),Home:0,End:s.length-1,PageDown:i(1),PageUp:i(-1)}[e.key];if(c!==void 0)return e.preventDefault(),pe(t,n,s[c])}var Ta=({written:t,model:e,explained:n})=>!!(t&&(e||Object.keys(n).length)),ye=t=>t.attentions.length>0,dt={reader:{title:"Reader",draw:uo,fits:Ta},heads:{title:"Heads",draw:Bs,fits:ye},map:{title:"Heat map",draw:Zn,fits:ye},links:{title:"Links",draw:Qs,fits:ye},change:{title:"What if",draw:Zs,fits:t=>!!t.changes},pattern:{title:"Pattern",draw:no,fits:t=>t.patterns.length>0},walk:{title:"Walk-through",draw:po,fits:t=>!!(t.walk??t.live?.walk)},compare:{title:"Compare",draw:os,fits:ye}},vo=["view","kind","layer","head","row","place","pick","by","scale","theme","share","sort","pattern","panel","step","whole","lens","changed","next","column","pair","followed","other","against","text",...Object.keys(P)],xe=class{constructor(e,n,s,o=null){Object.assign(this,{element:e,source:n,engine:o,stored:n.stored,past:[],hot:null}),this.origin=n.base??(o?n:void 0),this.state={view:"reader",kind:0,layer:0,head:"mean",row:ko(n.header),pick:0,by:"depends",scale:"linear",theme:"system",share:.8,sort:"layer",said:"",busy:"",pattern:0,panel:0,step:0},this.state.layer=(n.header.attentions[0]?.shape[0]??1)-1,Object.assign(this.state,o?{text:n.given.source,...P}:{},s),this.#n()}get attention(){return this.source.header.attentions[this.state.kind]}get words(){return this.source.words(this.attention)}set(e){return Object.assign(this.state,e),this.#n(),this.#s(),this.draw()}replace(e){let n=this.source,s=this.engine&&e.given.source===n.given.source,o=s?this.follows??"words":this.follows;if(this.source=e,this.follows=null,!s)for(let r of["changed","next","pair","followed","column"])delete this.state[r];if(o)this.#t(n,o);else{delete this.state.place,Object.assign(this,{origin:e.base??(this.engine?e:void 0),past:[]});let r=this.engine?this.state.kind:0;Object.assign(this.state,{kind:r,row:ko(e.header),pick:0})}return this.set({said:e.header.title})}#t(e,n){let{target:s}=this.source.header.texts;if(!s)return;let o=n==="words"?tt(this.#e(e),e.header.texts.target,s):n;Object.assign(this.state,{place:o,row:o})}#e({header:e}){return Math.min(Number(this.state.place??e.chosen),e.texts.target.length-1)}async draw(){let{kind:e,layer:n,head:s}=this.state,o=this.turn=(this.turn??0)+1,r=this.attention?await this.source.head(e,n,s):null;o===this.turn&&(document.documentElement.dataset.theme=this.state.theme,this.weights=r,Ce(_a(this,r),this.element),this.drawFirst(),this.element.dataset.ready="yes")}drawFirst(){Ce(Is(this),this.element.querySelector(".first")),Es(this.element)}#n(){let{state:e}=this,{header:n}=this.source,s=(a,l)=>Math.min(Math.max(Math.trunc(Number(a))||0,0),Math.max(l-1,0));(!Object.hasOwn(dt,e.view)||!dt[e.view].fits(n))&&(e.view=Object.keys(dt).find(a=>dt[a].fits(n))),e.kind=s(e.kind,n.attentions.length);let[o,r,i,c]=this.attention?.shape??[1,1,1,1];e.layer=s(e.layer,o),e.head=r===1?0:e.head==="mean"?"mean":s(e.head,r),e.row=s(e.row,i);for(let[a,l]of Object.entries({column:c,changed:1/0,next:1/0}))e[a]!==void 0&&(e[a]=s(e[a],l));for(let a of["pair","followed","other"])typeof e[a]=="string"&&(e[a]=e[a].split(",").map(l=>l==="mean"?l:s(l,1/0)));e.pick=s(e.pick,3),e.share=Math.min(Math.max(Number(e.share)||.8,.05),1),e.pattern=s(e.pattern,n.patterns.length),e.step=Math.max(Math.trunc(Number(e.step))||0,0),e.panel=s(e.panel,n.patterns[e.pattern]?.panels.length??1),Object.hasOwn(Ut,e.scale)||(e.scale="linear"),["system","light","dark"].includes(e.theme)||(e.theme="system")}#s(){let e=Object.fromEntries(vo.filter(s=>this.state[s]!==void 0).map(s=>[s,String(this.state[s])]));parent!==window&&parent.postMessage({regard:e},"*");let n=new URLSearchParams(e);try{history.replaceState(null,"",`#${n}`)}catch{}}};function ko({written:t,chosen:e,attentions:[n],texts:s}){return t||!n?e:le(s[n.rows])}function Ao(t){return Mo(Object.fromEntries(new URLSearchParams(t.slice(1))))}function Mo(t){return Object.fromEntries(vo.filter(e=>Object.hasOwn(t,e)).map(e=>[e,String(t[e])]))}function _a(t,e){let{state:n,source:s}=t,o=Object.entries(dt).filter(([,r])=>r.fits(s.header));return u`
<main>
<div class="first"></div>
<nav role="tablist" aria-label="Views" @keydown=${fe}>
${o.map(([r,i])=>u`<button
role="tab"
aria-selected=${String(r===n.view)}
aria-controls="view"
@click=${()=>t.set({view:r})}
>
${i.title}
</button>`)}
</nav>
<div id="view" role="tabpanel" aria-label=${dt[n.view].title}>
${dt[n.view].draw(t,e)}
</div>
</main>
<p class="said" role="status" aria-live="polite">${n.said}</p>
<footer>
${s.header.notes.map(r=>u`<p>${r}</p>`)}
<p>
Attention alone is not an explanation: a model can look at a word without using it. Made by
regard ${s.header.version}; this page loads nothing from a network.
</p>
${M("Colours",Object.entries({system:"of the system",light:"light",dark:"dark"}),n.theme,r=>t.set({theme:r}))}
</footer>
`}async function Ea(t,e){t.textContent="Unpacking the model…";let n=new $e(e.header),s=Ao(location.hash),o={text:e.header.model.text,...P};window.regard={ready:n.ready,run:a=>n.run(a),engine:n,shown:[],coloured:[]};let[r,i]=[null,""];try{r=await n.play(e,{...o,...s})}catch(a){i=a.message;for(let l of Object.keys(o))delete s[l];r=await n.play(e,o)}(await n.ready).checked||(i||="This address is not secure (https), so the browser could not check the hash of the model."),t.replaceChildren();let c=new xe(t,r,s,n);return await c.set({busy:i}),window.regard.opened=performance.now(),c}async function Oa(t){let e=Gn();if(e.header.model)return Ea(t,e);t.replaceChildren();let n=new xe(t,e,Ao(location.hash));return await n.draw(),n}var Bt=document.getElementById("regard-explorer");Bt&&Oa(Bt).then(t=>{addEventListener("resize",()=>t.draw()),addEventListener("message",({source:e,data:n})=>{e===parent&&parent!==window&&n?.regard instanceof Object&&t.set(Mo(n.regard))})},t=>{Bt.textContent=t.message,Bt.setAttribute("role","alert"),Bt.dataset.ready="failed"});export{xe as App};
/*! Bundled license information:

lit-html/lit-html.js:
lit-html/directive.js:
  (**
   * @license
   * Copyright 2017 Google LLC
   * SPDX-License-Identifier: BSD-3-Clause
   *)
*/
