// Installed by vllm-node. Who asks, which instance answers, and what the models are; streams pass beside all this.
import crypto from 'crypto';
import fs from 'fs';

// Ticks of /proc in a second, on every Linux.
const TICKS = 100;
// Workers of one start are born together; those of another reading of the configuration later than this.
const TOGETHER_S = 0.3;

// The client's name by the hash of its key; empty when there is no such key.
function client(r) {
    const given = /^bearer +([\x21-\x7e]{1,512}) *$/i.exec(r.headersIn.Authorization || '');
    if (!given) {
        return '';
    }
    return gateway_clients.keys[crypto.createHash('sha256').update(given[1]).digest('hex')] || '';
}

// What is read once for all requests has no methods: a list of it is made one that has.
function list(read) {
    const made = [];
    for (let i = 0; i < read.length; i++) {
        made.push(read[i]);
    }
    return made;
}

// `models` of a client: null means all.
function may(models, model) {
    return models === null || list(models).includes(model);
}

function refuse(r, status, type, code, message) {
    r.headersOut['Content-Type'] = 'application/json';
    r.return(status, JSON.stringify({error: {message: message, type: type, param: null, code: code}}));
}

// Sends a request to the instances that have its model. A name that is not served and one that is not allowed are told
// apart only where the client may know that the model is there.
function route(r) {
    let body;
    try {
        body = JSON.parse(r.requestText || '');
    } catch (e) {
        body = null;
    }
    if (body === null || typeof body !== 'object' || Array.isArray(body)) {
        refuse(r, 400, 'invalid_request_error', 'invalid_json', 'the body is no JSON object');
        return;
    }
    const served = list(gateway_routes.models);
    let model = body.model;
    if ((model === undefined || model === null) && served.length === 1) {
        model = served[0].name;
    }
    if (typeof model !== 'string') {
        refuse(r, 400, 'invalid_request_error', 'model_missing', 'the body names no model');
        return;
    }
    const found = served.find((one) => one.name === model);
    if (!found) {
        refuse(r, 404, 'invalid_request_error', 'model_not_found', 'the model is not served here; see /v1/models');
        return;
    }
    r.variables.gateway_model = model;
    if (!may(gateway_clients.models[r.variables.gateway_client], model)) {
        refuse(r, 403, 'permission_error', 'model_not_allowed', 'this key may not use the model');
        return;
    }
    r.variables.gateway_upstream = found.upstream;
    r.internalRedirect('@' + r.uri);
}

// When the first piece of the answer came; after it the pieces pass without being looked at.
function firstByte(r, data, flags) {
    r.sendBuffer(data, flags);
    if (data.length > 0) {
        r.variables.gateway_first_byte = r.variables.request_time;
        r.done();
    }
}

async function everyInstance(r, path) {
    return Promise.all(list(gateway_routes.ports).map((port) => r.subrequest('/-/' + path + '/' + port, {method: 'GET'})));
}

// What all instances serve, as far as the client may use it.
async function models(r) {
    const mine = gateway_clients.models[r.variables.gateway_client];
    const answers = await everyInstance(r, 'models');
    const found = [];
    let heard = false;
    answers.forEach((answer) => {
        if (answer.status !== 200) {
            return;
        }
        try {
            JSON.parse(answer.responseText).data.forEach((model) => {
                if (may(mine, model.id) && !found.some((one) => one.id === model.id)) {
                    found.push(model);
                }
            });
            heard = true;
        } catch (e) {
            // It is no vLLM that answers there: as good as silent.
        }
    });
    if (!heard) {
        refuse(r, 503, 'server_error', 'unavailable', 'no model server answers');
        return;
    }
    r.headersOut['Content-Type'] = 'application/json';
    r.return(200, JSON.stringify({object: 'list', data: found}));
}

async function health(r) {
    const answers = await everyInstance(r, 'health');
    const well = answers.some((answer) => answer.status === 200);
    r.headersOut['Content-Type'] = 'application/json';
    r.return(well ? 200 : 503, well ? '{"status":"ok"}' : '{"status":"unavailable"}');
}

// [parent, start in seconds since boot] of a process.
function birth(pid) {
    const fields = fs.readFileSync('/proc/' + pid + '/stat', 'utf8').replace(/^.*\) /, '').split(' ');
    return [Number(fields[1]), Number(fields[19]) / TICKS];
}

// When the workers that answer now were started, which they are each time the configuration is read. Written as
// Prometheus writes it: what brings the node up asks all its programs in this way.
function status(r) {
    const self = birth('self');
    const births = [];
    fs.readdirSync('/proc').forEach((pid) => {
        try {
            const one = /^[0-9]+$/.test(pid) ? birth(pid) : [];
            if (one[0] === self[0]) {
                births.push(one[1]);
            }
        } catch (e) {
            // It has ended meanwhile.
        }
    });
    let first = self[1];
    births.sort((a, b) => b - a).forEach((at) => {
        if (at < first && first - at < TOGETHER_S) {
            first = at;
        }
    });
    const now = Number(fs.readFileSync('/proc/uptime', 'utf8').split(' ')[0]);
    const loaded = Date.now() / 1000 - (now - first);
    r.return(200, 'gateway_config_last_reload_successful 1\n'
        + 'gateway_config_last_reload_success_timestamp_seconds ' + loaded.toFixed(2) + '\n');
}

export default {client, route, firstByte, models, health, status};
